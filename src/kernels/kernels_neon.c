/* kernels_neon.c: which slots neon replaces. */
#include "kernels/kernels.h"

void cb_kernels_set_neon(cb_kernels *k)
{
    k->name = "neon";
}
