/* graph.h: a step of few rows as a CUDA graph. Its nodes are the step's kernels; an edge says which kernel another one waits for
 * (griddepcontrol.wait), so that kernels which need nothing of each other run side by side. */
#ifndef CB_CUDA_GRAPH_H
#define CB_CUDA_GRAPH_H
#include "cuda/cuda.h"

/* Kernels side by side at most: those of one launch. */
enum { CU_GRAPH_WIDE = CU_MAX_PARTS };

/* A graph that is being made: kernels are added in place of being launched. */
struct cu_building {
    CUgraph graph;
    CUgraphNode ahead[CU_GRAPH_WIDE], last[CU_GRAPH_WIDE]; /* what the last kernels wait for; the last kernels, side by side */
    int n_ahead, n_last;
    bool beside; /* the next kernel stands beside the last ones */
};

/* The next kernel needs nothing of the last one, which nobody has waited for yet. Without a graph they follow each other. */
static inline void cu_graph_beside(cb_dev *d)
{
    if (d->building) d->building->beside = true;
}
/* Adds a kernel to d->building. */
CUresult cu_graph_add(cb_dev *d, const CUlaunchConfig *c, CUfunction f, void **params);
/* Runs the step at hand from its graph, or from a new one that `step` adds kernels to; launched one by one where the GPU has no room for a graph. */
int cu_graph_run(cb_dev *d, int (*step)(cb_dev *d, cb_err *err), cb_err *err);
#endif
