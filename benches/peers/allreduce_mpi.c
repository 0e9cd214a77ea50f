/* MPI_Allreduce of floats, timed as `muster bench allreduce` times: batches, the slowest rank.
 * Arguments: apart or in-place, optionally fresh (every rank writes its buffer before each operation), then bytes:samples:batch ... ; a line of JSON per size. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    int rank, ranks;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int in_place = argc > 1 && strcmp(argv[1], "in-place") == 0;
    int fresh = argc > 2 && strcmp(argv[2], "fresh") == 0;
    for (int a = 2 + fresh; a < argc; a++) {
        size_t bytes, samples, batch;
        if (sscanf(argv[a], "%zu:%zu:%zu", &bytes, &samples, &batch) != 3) {
            fprintf(stderr, "%s is not bytes:samples:batch\n", argv[a]);
            MPI_Abort(MPI_COMM_WORLD, 2);
        }
        int count = (int)(bytes / 4);
        float *in = malloc(bytes), *out = malloc(bytes);
        double *times = malloc(samples * sizeof *times);
        if (!in || !out || !times) MPI_Abort(MPI_COMM_WORLD, 3);
        for (int i = 0; i < count; i++) in[i] = (float)(rank + i % 5), out[i] = 0;
        MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        for (int i = 0; i < count; i++)
            if (out[i] != (float)(ranks * (ranks - 1) / 2 + ranks * (i % 5))) MPI_Abort(MPI_COMM_WORLD, 4);
        const void *from = in_place ? MPI_IN_PLACE : in;
        for (size_t s = 0; s < samples + samples / 10; s++) {
            if (fresh) {
                batch = 1;
                for (int i = 0; i < count; i++) (in_place ? out : in)[i] = (float)(rank + i % 5);
                MPI_Barrier(MPI_COMM_WORLD);
            }
            double start = MPI_Wtime();
            for (size_t b = 0; b < batch; b++) MPI_Allreduce(from, out, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            double time = (MPI_Wtime() - start) * 1e6 / (double)batch;
            /* The first tenth warms up. */
            if (s >= samples / 10) times[s - samples / 10] = time;
        }
        double *taken = malloc(samples * sizeof *taken);
        if (!taken) MPI_Abort(MPI_COMM_WORLD, 3);
        memcpy(taken, times, samples * sizeof *taken);
        qsort(times, samples, sizeof *times, compare);
        double mine[3] = {times[0], times[samples / 2], times[(samples * 99 + 99) / 100 - 1]}, worst[3];
        MPI_Reduce(mine, worst, 3, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
        if (rank == 0) {
            printf("{\"bytes\": %zu, \"min_us\": %.3f, \"median_us\": %.3f, \"p99_us\": %.3f, \"samples_us\": [", bytes, worst[0],
                   worst[1], worst[2]);
            for (size_t s = 0; s < samples; s++) printf("%s%.3f", s ? ", " : "", taken[s]);
            printf("]}\n");
            fflush(stdout);
        }
        free(in);
        free(out);
        free(times);
        free(taken);
    }
    MPI_Finalize();
    return 0;
}
