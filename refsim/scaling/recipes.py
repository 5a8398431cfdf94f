"""All recipes, and the recipe of a name for a block format."""

from refsim.errors import RefsimError, unknown
from refsim.scaling.block_formats import BlockFormat, block_format
from refsim.scaling.four_over_six import FOUR_OVER_SIX_RECIPES
from refsim.scaling.mx_recipes import MX_RECIPES, MxRecipe
from refsim.scaling.nvfp4_recipes import NVFP4_RECIPES, Nvfp4Recipe

Recipe = MxRecipe | Nvfp4Recipe
RECIPES: tuple[Recipe, ...] = (*MX_RECIPES, *NVFP4_RECIPES, *FOUR_OVER_SIX_RECIPES)
USUAL_RECIPE, USUAL_TWO_LEVELS = "rceil", "te"


def recipes_of(format: str | BlockFormat) -> tuple[Recipe, ...]:
    """Return the recipes that can make a block format, in the order of `RECIPES`.

    recipes_of("nvfp4")[0].name is "te". Raises RefsimError `unknown-format`. Source: the recipes' entries.
    """
    row = block_format(format)
    return tuple(each for each in RECIPES if row.name in each.formats)


def recipe_named(name: str | Recipe | None, format: str | BlockFormat) -> Recipe:
    """Return the recipe of that name for a block format; None means the default recipe.

    recipe_named(None, "mxfp8").name is "rceil". Raises RefsimError `unknown-recipe` with the nearest name, and
    `unsupported-format` where the recipe is for other formats. Source: the recipe's entry.
    """
    row = block_format(format)
    mine = recipes_of(row)
    if isinstance(name, Recipe):
        found = name
    else:
        wanted = (USUAL_TWO_LEVELS if row.two_levels else USUAL_RECIPE) if name is None else str(name)
        rows = [each for each in (*mine, *RECIPES) if each.name == wanted]
        if not rows:
            raise unknown("recipe", wanted, [each.name for each in mine], where=str(row))
        found = rows[0]
    if row.name not in found.formats:
        what = f"recipe {found} is not for {row}"
        help = f"recipes of {row}: {', '.join(each.name for each in mine)}"
        raise RefsimError("unsupported-format", what, rule=f"{found} makes {', '.join(found.formats)}", help=help)
    return found
