"""Colors of pictures: eight hues of four shades, for light and for dark backgrounds, and one for alerts."""

import math

HUES, SHADES = 8, 4
LIGHT, DARK = "light", "dark"
INK = {LIGHT: "#1c1c1c", DARK: "#f2f2f2"}
PAPER = {LIGHT: "#ffffff", DARK: "#16181a"}
HOLE = {LIGHT: "#f4f5f6", DARK: "#1e2124"}
FAINT = {LIGHT: "#666666", DARK: "#9a9a9a"}
ALERTING = {LIGHT: "#ff9d94", DARK: "#a3231d"}
# Lightness of the first shade, its step, chroma, its step. Text on every shade has a contrast above 4.5.
_RAMPS = {LIGHT: (0.94, -0.055, 0.040, 0.022), DARK: (0.31, 0.058, 0.060, 0.014)}


def fill(colour: int, mode: str) -> str:
    """Return the color of a cell as hex: hue colour // 4 of the circle, shade colour % 4 from faint to strong."""
    hue, shade = divmod(colour, SHADES)
    start, step, chroma, chroma_step = _RAMPS[mode]
    return _hex(start + step * shade, chroma + chroma_step * shade, math.radians(250 - hue * 360 / HUES))


def _hex(lightness: float, chroma: float, hue: float) -> str:
    """Return an OKLCH color as clipped sRGB hex: equal steps of lightness look equal in every hue."""
    a, b = chroma * math.cos(hue), chroma * math.sin(hue)
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )
    return "#" + "".join(f"{round(255 * _gamma(min(max(each, 0.0), 1.0))):02x}" for each in linear)


def _gamma(linear: float) -> float:
    return 12.92 * linear if linear <= 0.0031308 else 1.055 * linear ** (1 / 2.4) - 0.055
