/* graph.c: steps of few rows as CUDA graphs. They are made node by node, not captured from a stream: a stream has one order, and would
 * make kernels wait for each other that need not. */
#include "cuda/graph.h"

/* Programmatic edges: the kernel may be set up when the one ahead says so, and waits by itself. */
static CUresult add_edges(cb_dev *d, const CUgraphNode *from, int n, CUgraphNode to)
{
    CUgraphNode each[CU_GRAPH_WIDE];
    CUgraphEdgeData data[CU_GRAPH_WIDE];
    for (int i = 0; i < n; i++) {
        each[i] = to;
        data[i] = (CUgraphEdgeData){.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, .type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC};
    }
    if (!n) return CUDA_SUCCESS;
    return d->pdl ? d->cu.add_edges(d->building->graph, from, each, data, (size_t)n) : d->cu.add_plain_edges(d->building->graph, from, each, (size_t)n);
}

CUresult cu_graph_add(cb_dev *d, const CUlaunchConfig *c, CUfunction f, void **params)
{
    struct cu_building *b = d->building;
    CUDA_KERNEL_NODE_PARAMS k = {.func = f, .gridDimX = c->gridDimX, .gridDimY = c->gridDimY, .gridDimZ = c->gridDimZ, .blockDimX = c->blockDimX,
                                 .blockDimY = c->blockDimY, .blockDimZ = c->blockDimZ, .sharedMemBytes = c->sharedMemBytes, .kernelParams = params};
    CUgraphNode node;
    CUresult r = d->cu.cuGraphAddKernelNode_(&node, b->graph, NULL, 0, &k);
    for (unsigned i = 0; i < c->numAttrs && r == CUDA_SUCCESS; i++) /* the other attribute is the kind of the edges */
        if (c->attrs[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) r = d->cu.cuGraphKernelNodeSetAttribute_(node, c->attrs[i].id, &c->attrs[i].value);
    if (r != CUDA_SUCCESS) return r;
    if (!b->beside || b->n_last == CU_GRAPH_WIDE) {
        for (int i = 0; i < b->n_last; i++) b->ahead[i] = b->last[i];
        b->n_ahead = b->n_last;
        b->n_last = 0;
    }
    b->beside = false;
    b->last[b->n_last++] = node;
    return add_edges(d, b->ahead, b->n_ahead, node);
}

static int make(cb_dev *d, int (*step)(cb_dev *d, cb_err *err), CUgraphExec *out, cb_err *err)
{
    struct cu_building b = {0};
    CUresult r = d->cu.cuGraphCreate_(&b.graph, 0);
    if (r != CUDA_SUCCESS) return cu_fail(&d->cu, r, "a graph", err);
    d->building = &b;
    int rc = step(d, err);
    d->building = NULL;
    if (rc == 0 && (r = d->cu.cuGraphInstantiate_(out, b.graph, 0)) != CUDA_SUCCESS) rc = cu_fail(&d->cu, r, "graph instantiation", err);
    d->cu.cuGraphDestroy_(b.graph);
    return rc;
}

int cu_graph_run(cb_dev *d, int (*step)(cb_dev *d, cb_err *err), cb_err *err)
{
    cu_graph *g = NULL;
    for (int i = 0; i < d->n_graphs && !g; i++)
        if (d->graphs[i].n_rows == d->batch->n_rows && d->graphs[i].n_wanted == d->n_wanted && d->graphs[i].n_splits == d->n_splits)
            g = &d->graphs[i];
    if (!g) {
        CUgraphExec exec;
        cb_err why;
        int rc = make(d, step, &exec, &why);
        if (rc == CB_ENOMEM) return step(d, err); /* the GPU is full: launched one by one the step still runs */
        if (rc < 0) return cb_fail(err, rc, "%s", why.text);
        if (d->n_graphs < CU_MAX_GRAPHS) g = &d->graphs[d->n_graphs++];
        else {
            g = &d->graphs[d->next_graph++ % CU_MAX_GRAPHS];
            d->cu.cuGraphExecDestroy_(g->exec);
        }
        *g = (cu_graph){d->batch->n_rows, d->n_wanted, d->n_splits, exec};
    }
    CUresult r = d->cu.cuGraphLaunch_(g->exec, d->stream);
    return r == CUDA_SUCCESS ? 0 : cu_fail(&d->cu, r, "graph launch", err);
}
