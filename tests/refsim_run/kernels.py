"""Small kernels as PTX, so that no compiler is needed."""

HEAD = ".version 8.0\n.target sm_80\n.address_size 64\n"

DOUBLE = f"""{HEAD}
.global .align 4 .f32 factor = 0f40000000;
.visible .entry double(.param .u64 y, .param .u64 x, .param .u32 n) {{
    .reg .pred %p; .reg .f32 %f<3>; .reg .u32 %r<3>; .reg .u64 %rd<5>;
    ld.param.u64 %rd1, [y];
    ld.param.u64 %rd2, [x];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %tid.x;
    setp.ge.u32 %p, %r2, %r1;
    @%p bra DONE;
    mul.wide.u32 %rd3, %r2, 4;
    add.u64 %rd4, %rd2, %rd3;
    ld.global.f32 %f1, [%rd4];
    ld.global.f32 %f2, [factor];
    mul.rn.f32 %f1, %f1, %f2;
    add.u64 %rd4, %rd1, %rd3;
    st.global.f32 [%rd4], %f1;
DONE:
    ret;
}}
"""
"""y[i] = factor * x[i] for i < n; factor, a variable of the module, begins as 2."""

RACE = f"""{HEAD}
.visible .entry race(.param .u64 y) {{
    .reg .u32 %r<2>; .reg .u64 %rd<2>;
    ld.param.u64 %rd1, [y];
    mov.u32 %r1, %tid.x;
    st.global.u32 [%rd1], %r1;
    ret;
}}
"""
"""Every thread writes its number to one place."""

OPEN = f"""{HEAD}
.visible .entry open(.param .u64 y) {{
    .reg .f32 %f<4>; .reg .u64 %rd<2>;
    ld.param.u64 %rd1, [y];
    ld.global.f32 %f1, [%rd1];
    ld.global.f32 %f2, [%rd1+4];
    mul.f32 %f3, %f1, %f2;
    add.f32 %f3, %f3, %f2;
    st.global.f32 [%rd1], %f3;
    ret;
}}
"""
"""y[0] = y[0] * y[1] + y[1], which ptxas may fuse."""
