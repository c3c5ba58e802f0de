/* A library with the face of NVIDIA's NVML (libnvidia-ml.so.1), for machines without a GPU.

   Its answers stand in the file that FAKE_NVML names, read anew by nvmlInit and with each count of the GPUs, so that one
   reading is of one moment: one `key=value` a line, each ended. `count`, `driver`, `init` are the machine's; `N.name`,
   `N.uuid` ... those of GPU N. `!15` in place of a value is the error 15; a GPU whose `N.handle` is an error is not to be
   had at all; a key that is missing is NOT_SUPPORTED; one that is `hang` holds up the call until it is another one.
   With OLD defined it is as old drivers' are: functions of today are missing. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, TEXT = 128, GPUS = 16 };

typedef struct { int number; } *device;
static struct { int number; } devices[GPUS];
static int opened;
static char answers[8192];

static void load(void) {
    FILE *file = fopen(getenv("FAKE_NVML"), "r");
    if (!file) abort();
    answers[fread(answers, 1, sizeof answers - 1, file)] = 0;
    fclose(file);
}

static int look(const char *key, char *value) {
    size_t length = strlen(key);
    for (const char *line = answers; *line; line += strcspn(line, "\n") + 1) {
        if (strncmp(line, key, length) || line[length] != '=') continue;
        line += length + 1;
        snprintf(value, TEXT, "%.*s", (int)strcspn(line, "\n"), line);
        return value[0] == '!' ? atoi(value + 1) : SUCCESS;
    }
    return NOT_SUPPORTED;
}

static int text(const char *key, char *value) {
    int code;
    while (!(code = look(key, value)) && !strcmp(value, "hang")) {
        usleep(5000);
        load();
    }
    return code;
}

static int number(const char *key, unsigned long long *value) {
    char told[TEXT];
    int code = text(key, told);
    if (!code) *value = strtoull(told, NULL, 10);
    return code;
}

static int of(device card, const char *what, char *value) {
    char key[TEXT];
    if (!opened) return UNINITIALIZED;
    snprintf(key, sizeof key, "%d.%s", card->number, what);
    return text(key, value);
}

static int number_of(device card, const char *what, unsigned long long *value) {
    char told[TEXT];
    int code = of(card, what, told);
    if (!code) *value = strtoull(told, NULL, 10);
    return code;
}

static int small_of(device card, const char *what, unsigned *value) {
    unsigned long long big = 0;
    int code = number_of(card, what, &big);
    if (!code) *value = (unsigned)big;
    return code;
}

static int copy_of(device card, const char *what, char *out, unsigned size) {
    char told[TEXT];
    int code = of(card, what, told);
    if (!code) snprintf(out, size, "%s", told);
    return code;
}

int nvmlInitWithFlags(unsigned flags) {
    char how[TEXT] = "";
    int code;
    (void)flags;
    load();
    code = text("init", how);
    if (code == NOT_SUPPORTED) code = SUCCESS;
    if (!code) opened++;
    return code;
}

int nvmlShutdown(void) {
    if (!opened) return UNINITIALIZED;
    opened--;
    return SUCCESS;
}

const char *nvmlErrorString(int code) { return code == 99 ? "an error of tomorrow" : "an error"; }

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    char told[TEXT];
    int code = text("driver", told);
    if (!code) snprintf(out, size, "%s", told);
    return code;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    unsigned long long told = 0;
    int code;
    load();
    code = opened ? number("count", &told) : UNINITIALIZED;
    *count = (unsigned)told;
    return code;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device *card) {
    char told[TEXT];
    int code;
    if (index >= GPUS) return INVALID_ARGUMENT;
    devices[index].number = (int)index;
    *card = (device)&devices[index];
    code = of(*card, "handle", told);
    return code == NOT_SUPPORTED ? SUCCESS : code;
}

int nvmlDeviceGetName(device card, char *out, unsigned size) { return copy_of(card, "name", out, size); }
int nvmlDeviceGetUUID(device card, char *out, unsigned size) { return copy_of(card, "uuid", out, size); }

struct memory { unsigned long long total, free, used; };

int nvmlDeviceGetMemoryInfo(device card, struct memory *out) {
    unsigned long long reserved = 0;
    int code = number_of(card, "total", &out->total);
    if (!code) code = number_of(card, "free", &out->free);
    if (!code) code = number_of(card, "used", &out->used);
    if (!code && !number_of(card, "reserved", &reserved)) out->used += reserved;
    return code;
}

struct utilization { unsigned gpu, memory; };

int nvmlDeviceGetUtilizationRates(device card, struct utilization *out) { return small_of(card, "use", &out->gpu); }
int nvmlDeviceGetPowerUsage(device card, unsigned *out) { return small_of(card, "power", out); }

int nvmlDeviceGetTemperature(device card, int sensor, unsigned *out) {
    return sensor ? INVALID_ARGUMENT : small_of(card, "temperature", out);
}

int nvmlDeviceGetMigMode(device card, unsigned *current, unsigned *pending) {
    int code = small_of(card, "mig", current);
    *pending = *current;
    return code;
}

int nvmlDeviceGetCudaComputeCapability(device card, int *major, int *minor) {
    char told[TEXT];
    int code = of(card, "compute", told);
    if (!code && sscanf(told, "%d.%d", major, minor) != 2) abort();
    return code;
}

#ifndef OLD

struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };

int nvmlDeviceGetMemoryInfo_v2(device card, struct memory_v2 *out) {
    int code = number_of(card, "total", &out->total);
    if (!code) code = number_of(card, "free", &out->free);
    if (!code) code = number_of(card, "used", &out->used);
    if (!code && number_of(card, "reserved", &out->reserved)) out->reserved = 0;
    return out->version == (sizeof *out | 2u << 24) ? code : INVALID_ARGUMENT;
}

struct temperature { unsigned version; int sensor, temperature; };

int nvmlDeviceGetTemperatureV(device card, struct temperature *out) {
    return out->sensor ? INVALID_ARGUMENT : small_of(card, "temperature", (unsigned *)&out->temperature);
}

struct process { unsigned pid; unsigned long long memory; unsigned instance, compute; };

int nvmlDeviceGetComputeRunningProcesses_v3(device card, unsigned *count, struct process *out) {
    char told[TEXT], *at = told;
    unsigned found = 0, room = *count;
    int code = of(card, "processes", told);
    if (code) return code;
    for (char *one; (one = strsep(&at, " "));) {
        if (!*one) continue;
        if (found < room && out) out[found] = (struct process){(unsigned)atoi(one), 1 << 30, ~0u, ~0u};
        found++;
    }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

#endif
