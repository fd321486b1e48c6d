/* gemm_variants.h: the kernels that gemm_bench knows; the shapes repeat those in gemm.cu and gemm_sm90.cu. */
static const variant variants[] = {
    V(k_gemm_q4g64, CU_FMT_AFFINE, gm::fmt<4, 64, 2>, 4, 2, 2, 4, 3, 2),
    V(k_gemm_q2g128, CU_FMT_AFFINE, gm::fmt<2, 128, 1>, 4, 2, 2, 4, 3, 2),
    V(k_gemm_q4g32, CU_FMT_AFFINE, gm::fmt<4, 32, 2>, 4, 2, 2, 4, 5, 2),
    V(k_gemm_q8g64, CU_FMT_AFFINE, gm::fmt<8, 64, 1>, 4, 2, 2, 4, 4, 2),
    V(k_gemm_planes, CU_FMT_PLANES, gm::fmt<8, 64, 1, true>, 4, 2, 2, 4, 3, 1),
    W(k_gemm_q4g64_sm90, CU_FMT_AFFINE, gm::fmt<4, 64, 2, false, true>, 4, 64, 4),
    W(k_gemm_q2g128_sm90, CU_FMT_AFFINE, gm::fmt<2, 128, 1>, 4, 64, 5),
    W(k_gemm_q4g32_sm90, CU_FMT_AFFINE, gm::fmt<4, 32, 2>, 4, 64, 7),
    W(k_gemm_q8g64_sm90, CU_FMT_AFFINE, gm::fmt<8, 64, 1>, 4, 64, 5),
    W(k_gemm_planes_sm90, CU_FMT_PLANES, gm::fmt<8, 64, 1, true>, 3, 64, 5),
    W(k_gemm_q4g64_sm90_s, CU_FMT_AFFINE, gm::fmt<4, 64, 1>, 3, 32, 8),
    W(k_gemm_q2g128_sm90_s, CU_FMT_AFFINE, gm::fmt<2, 128, 1>, 3, 32, 8),
    W(k_gemm_q4g32_sm90_s, CU_FMT_AFFINE, gm::fmt<4, 32, 2>, 3, 32, 8),
    W(k_gemm_q8g64_sm90_s, CU_FMT_AFFINE, gm::fmt<8, 64, 1>, 3, 32, 8),
    W(k_gemm_planes_sm90_s, CU_FMT_PLANES, gm::fmt<8, 64, 1, true>, 3, 32, 6),
};
