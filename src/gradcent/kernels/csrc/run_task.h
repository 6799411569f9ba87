/* Running one task, for one element type. Included last, with the same R and NAME. */

/* Elements without weight vectors: a step without a mean, or unscaling. */
static void NAME(run_flat)(const job_t *job, const task_t *task, const tensor_t *t, const NAME(constants) *k) {
    const R zero = 0;
    R buffer[BLOCK];
    const int64_t most = IN_PLACE ? PIECE : BLOCK;
    for (int64_t at = task->range.begin; at < task->range.end; at += most) {
        int64_t n = task->range.end - at < most ? task->range.end - at : most;
        if (task->kind == FLAT) {
            NAME(apply)(&job->rule, t, k, at, n, &zero, &zero, 1);
        } else {
            R *g = NAME(load)(t, GRAD, at, n, buffer);
            for (int64_t i = 0; i < n; i++) g[i] = g[i] / (R)job->rule.unscale;
            NAME(store)(t, GRAD, at, n, g);
        }
    }
}

static void NAME(run)(const job_t *job, const task_t *task) {
    const tensor_t *t = &job->tensors[task->tensor];
    const NAME(constants) k = NAME(constants_of)(&job->rule, t);
    if (task->kind == FLAT || task->kind == UNSCALE) {
        NAME(run_flat)(job, task, t, &k);
    } else if (task->kind == COLUMN_SUM) {
        NAME(column_sums)(job, task, t, &k);
    } else if (task->kind == COLUMN_MEAN) {
        NAME(column_means)(job, task, t, &k);
    } else if (task->kind == COLUMN_STEP) {
        NAME(column_step)(job, task, t, &k);
    } else if (task->kind != VECTORS) {
        NAME(run_piece)(job, task, t, &k);
    } else if (t->inner >= SHORT && t->outer == 1 && IN_PLACE && !job->rule.update) {
        (job->rule.op == CENTRALIZE ? NAME(centralize_rows) : NAME(step_rows_in_turn))(job, t, &k, task->range.begin, task->range.end);
    } else if (t->inner >= SHORT) {
        for (int64_t vector = task->range.begin; vector < task->range.end; vector++) {
            R high, low;
            NAME(mean_of_long)(job, t, &k, vector, NULL, &high, &low);
            NAME(step_piece)(job, t, &k, vector, 0, t->outer * t->inner, high, low);
        }
    } else {
        for (int64_t vector = task->range.begin; vector < task->range.end;) {
            int64_t count = t->vectors - vector % t->vectors; /* a panel does not cross into the next batch */
            if (count > task->range.end - vector) count = task->range.end - vector;
            if (count > t->panel) count = t->panel;
            NAME(panel)(job, t, &k, vector, (int)count);
            vector += count;
        }
    }
}

#undef RUNS
#undef TERM
#undef IS_DOUBLE
#undef TINY
#undef IN_PLACE
#undef FOR_DECAY
#undef FOR_RULE
#undef STRIP
#undef PREFETCH_BYTES
#undef STATES
#undef STREAMS
#undef LOAD8
#undef VALUE8
