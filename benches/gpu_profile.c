// Writes down every kernel, copy and fill that a program has a GPU do: start and end in nanoseconds, bytes, name, one a line.
//
//   cc -O2 -shared -fPIC -o gpu_profile.so benches/gpu_profile.c -I CUPTI/include -L CUPTI/lib -l:libcupti.so.13
//   CUDA_INJECTION64_PATH=$PWD/gpu_profile.so GPU_PROFILE=rows.txt burnish ...
//   python3 benches/gpu_profile.py rows.txt --between update_
//
// CUPTI lies in NVIDIA's wheels (nvidia-cuda-cupti) and toolkits. The driver loads the library when it is initialised.

#include <cupti.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static FILE *rows;

static void CUPTIAPI room(uint8_t **buffer, size_t *size, size_t *records) {
    *size = 8 << 20;
    *buffer = aligned_alloc(8, *size);
    *records = 0;
}

static void CUPTIAPI full(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    (void)context, (void)stream, (void)size;
    CUpti_Activity *record = NULL;
    while (rows && cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
        if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            // The beginning of this record has been the same since CUPTI 11.
            CUpti_ActivityKernel9 *kernel = (CUpti_ActivityKernel9 *)record;
            fprintf(rows, "%llu %llu 0 %s\n", (unsigned long long)kernel->start, (unsigned long long)kernel->end, kernel->name);
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
            CUpti_ActivityMemcpy5 *copy = (CUpti_ActivityMemcpy5 *)record;
            fprintf(rows, "%llu %llu %llu copy%d\n", (unsigned long long)copy->start, (unsigned long long)copy->end,
                    (unsigned long long)copy->bytes, copy->copyKind);
        } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
            CUpti_ActivityMemset4 *fill = (CUpti_ActivityMemset4 *)record;
            fprintf(rows, "%llu %llu %llu fill\n", (unsigned long long)fill->start, (unsigned long long)fill->end,
                    (unsigned long long)fill->bytes);
        }
    }
    free(buffer);
}

static void finish(void) {
    cuptiActivityFlushAll(1);
    fflush(rows);
}

int InitializeInjection(void) {
    const char *file = getenv("GPU_PROFILE");
    rows = file ? fopen(file, "w") : NULL;
    if (!rows) {
        return 0;
    }
    cuptiActivityRegisterCallbacks(room, full);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY);
    cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMSET);
    // What was not flushed at the end would be lost.
    cuptiActivityFlushPeriod(500);
    atexit(finish);
    return 1;
}
