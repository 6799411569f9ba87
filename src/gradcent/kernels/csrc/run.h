/* What a task is done with, for one element type. Included last, with the same R and NAME. */

static void NAME(run)(const job_t *job, const task_t *task) {
    const tensor_t *t = &job->tensors[task->tensor];
    const NAME(numbers) k = NAME(numbers_of)(&job->rule, t);
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
        (job->rule.op == CENTRALIZE ? NAME(centre_rows) : NAME(rows))(job, t, &k, task->begin, task->end);
    } else if (t->inner >= SHORT) {
        for (int64_t vector = task->begin; vector < task->end; vector++) {
            R high, low;
            NAME(mean_of_long)(job, t, &k, vector, NULL, &high, &low);
            NAME(step_piece)(job, t, &k, vector, 0, t->outer * t->inner, high, low);
        }
    } else {
        for (int64_t vector = task->begin; vector < task->end;) {
            int64_t count = t->vectors - vector % t->vectors; /* a panel does not cross into the next batch */
            if (count > task->end - vector) count = task->end - vector;
            if (count > t->panel) count = t->panel;
            NAME(panel)(job, t, &k, vector, (int)count);
            vector += count;
        }
    }
}

#undef RUNS
#undef CAREFUL
#undef TINY
#undef IN_PLACE
#undef EACH_DECAY
#undef EACH_KIND
#undef STRETCH
#undef AHEAD
#undef STATES
#undef FRONTS
#undef EIGHT
#undef FORM
