// A stand-in for Huawei's libdcmi.so on simulated machines. What the machine is, it reads
// from the file "state" beside itself at every call, as the driver's devices are asked
// anew; what its callers change, vNPUs and their nodes, it keeps in the file "vnpus".
//
// As the original does, it finds the cards once, in dcmi_init: who came later is not
// known until the next one, who went is listed and does not answer.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "structures.h"

enum {
	OK = 0, INVALID_PARAMETER = -8001, INNER = -8005, NO_DEVICE = -8008, IOCTL_FAILED = -8009, NOT_READY = -8012,
	OCCUPIED = -8020, NOT_SUPPORTED = -8255,
};

static char dir[PATH_MAX - 64];
static int known[64][2], nknown = -1;

static void __attribute__((constructor)) find(void) {
	Dl_info self;
	char path[PATH_MAX];
	if (dladdr((void *)find, &self) && realpath(self.dli_fname, path) != NULL)
		snprintf(dir, sizeof dir, "%.*s", (int)(strrchr(path, '/') - path), path);
}

static FILE *openFile(const char *name, const char *mode) {
	char path[PATH_MAX];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	return fopen(path, mode);
}

// text copies the value of a key in a line "kind key=value …"; 0 where there is none.
static int text(const char *line, const char *key, char *out, size_t size) {
	char want[64];
	snprintf(want, sizeof want, " %s=", key);
	const char *at = strstr(line, want);
	if (at == NULL) return 0;
	at += strlen(want);
	snprintf(out, size, "%.*s", (int)strcspn(at, " \n"), at);
	return 1;
}

static long long number(const char *line, const char *key) {
	char value[64];
	return text(line, key, value, sizeof value) ? atoll(value) : 0;
}

static int isOf(const char *line, const char *kind, int card, int device) {
	return strncmp(line, kind, strlen(kind)) == 0 && line[strlen(kind)] == ' ' && number(line, "card") == card && number(line, "number") == device;
}

// names reports whether a list "a,b" has a name.
static int names(const char *list, const char *name) {
	size_t size = strlen(name);
	for (const char *at = list; (at = strstr(at, name)) != NULL; at += size)
		if ((at == list || at[-1] == ',') && (at[size] == 0 || at[size] == ',' || at[size] == ':')) return at - list + 1;
	return 0;
}

static int driver(char *version, size_t size) {
	char line[4096];
	int loaded = 0;
	FILE *f = openFile("state", "r");
	if (f == NULL) return 0;
	while (!loaded && fgets(line, sizeof line, f) != NULL)
		if (strncmp(line, "driver ", 7) == 0) loaded = text(line, "version", version, size);
	fclose(f);
	return loaded;
}

// read_ finds the line of a device, and fails as the call shall.
static int read_(const char *call, int card, int device, char *line, int size) {
	char version[64], list[1024];
	if (nknown < 0) return NOT_READY;
	int found = 0;
	for (int n = 0; n < nknown; n++) found |= known[n][0] == card && known[n][1] == device;
	if (!found) return INVALID_PARAMETER;
	for (;; usleep(20000)) {
		if (!driver(version, sizeof version)) return IOCTL_FAILED;
		FILE *f = openFile("state", "r");
		if (f == NULL) return IOCTL_FAILED;
		found = 0;
		while (!found && fgets(line, size, f) != NULL) found = isOf(line, "npu", card, device);
		fclose(f);
		if (!found) return NO_DEVICE;
		if (!text(line, "hang", list, sizeof list) || !(names(list, call) || names(list, "all"))) break;
	}
	if (number(line, "lost")) return NO_DEVICE;
	if (text(line, "errors", list, sizeof list)) {
		int at = names(list, call) ? names(list, call) : names(list, "all");
		if (at) return atoi(strchr(list + at - 1, ':') + 1);
	}
	return OK;
}

#define DEVICE \
	char line[4096]; \
	int failed = read_(__func__, card, device, line, sizeof line); \
	if (failed) return failed;

// Messages of faults come from a thread of the library's, as soon as it sees one begin or
// end, or one happen that does not last. They end where the library looks for cards anew.
static struct subscriber { int card, device; void (*handler)(Event *); char faults[1024]; int passed, grade; struct subscriber *next; } *subscribers;
static pthread_mutex_t subscribing = PTHREAD_MUTEX_INITIALIZER;

int dcmi_init(void) {
	char line[4096], version[64];
	if (!driver(version, sizeof version)) return INNER;
	FILE *f = openFile("state", "r");
	if (f == NULL) return INNER;
	pthread_mutex_lock(&subscribing);
	for (struct subscriber *s = subscribers, *next; s != NULL; s = next) {
		next = s->next;
		free(s);
	}
	subscribers = NULL;
	pthread_mutex_unlock(&subscribing);
	nknown = 0;
	while (nknown < 64 && fgets(line, sizeof line, f) != NULL)
		if (strncmp(line, "npu ", 4) == 0) {
			known[nknown][0] = number(line, "card");
			known[nknown++][1] = number(line, "number");
		}
	fclose(f);
	return OK;
}

int dcmi_get_driver_version(char *out, unsigned int size) {
	if (nknown < 0) return NOT_READY;
	return driver(out, size) ? OK : IOCTL_FAILED;
}

int dcmi_get_card_list(int *count, int *list, int size) {
	if (nknown < 0) return NOT_READY;
	*count = 0;
	for (int n = 0; n < nknown; n++)
		if ((n == 0 || known[n][0] != known[n - 1][0]) && *count < size) list[(*count)++] = known[n][0];
	return OK;
}

int dcmi_get_device_num_in_card(int card, int *count) {
	if (nknown < 0) return NOT_READY;
	*count = 0;
	for (int n = 0; n < nknown; n++) *count += known[n][0] == card;
	return *count ? OK : INVALID_PARAMETER;
}

int dcmi_get_device_type(int card, int device, int *type) { DEVICE *type = 0; return OK; }

int dcmi_get_device_logic_id(int *logic, int card, int device) { DEVICE *logic = number(line, "logic"); return OK; }

int dcmi_get_device_phyid_from_logicid(unsigned int logic, unsigned int *phys) {
	char line[4096];
	int found = 0;
	FILE *f = openFile("state", "r");
	if (nknown < 0 || f == NULL) return NOT_READY;
	while (!found && fgets(line, sizeof line, f) != NULL) found = strncmp(line, "npu ", 4) == 0 && number(line, "logic") == logic;
	fclose(f);
	*phys = number(line, "phys");
	return found ? OK : INVALID_PARAMETER;
}

int dcmi_get_device_chip_info(int card, int device, Chip *out) {
	DEVICE
	memset(out, 0, sizeof *out);
	strcpy((char *)out->family, "Ascend");
	strcpy((char *)out->version, "V1");
	text(line, "chip", (char *)out->name, sizeof out->name);
	out->aicores = number(line, "cores");
	return OK;
}

int dcmi_get_device_die_v2(int card, int device, int type, unsigned int *die) {
	DEVICE
	char value[64];
	if (type != 0 && type != 1) return INVALID_PARAMETER;
	memset(die, 0, 5 * sizeof *die);
	if (text(line, "die", value, sizeof value)) sscanf(value, "%8x-%8x-%8x-%8x-%8x", die, die + 1, die + 2, die + 3, die + 4);
	return OK;
}

int dcmi_get_device_pcie_info(int card, int device, OldPCI *out) {
	DEVICE
	char value[64];
	unsigned int domain;
	memset(out, 0, sizeof *out);
	out->vendor = 0x19e5;
	text(line, "pci", value, sizeof value);
	sscanf(value, "%x:%x:%x.%x", &domain, &out->bus, &out->slot, &out->function);
	return OK;
}

#ifndef OLD_DRIVER
int dcmi_get_device_pcie_info_v2(int card, int device, PCI *out) {
	DEVICE
	char value[64];
	memset(out, 0, sizeof *out);
	out->vendor = 0x19e5;
	text(line, "pci", value, sizeof value);
	sscanf(value, "%x:%x:%x.%x", (unsigned int *)&out->domain, &out->bus, &out->slot, &out->function);
	return OK;
}

int dcmi_get_device_errorcode_string(int card, int device, unsigned int code, char *out, int size) {
	DEVICE
	snprintf(out, size, "simulated fault %08X", code);
	return OK;
}

// What follows tells of faults.
static void tell(struct subscriber *to, const char *line, const char *code, int severity, int assertion) {
	Event e;
	memset(&e, 0, sizeof e);
	e.of.fault.code = strtoul(code, NULL, 16);
	e.of.fault.device = number(line, "logic");
	e.of.fault.severity = severity;
	e.of.fault.assertion = assertion;
	snprintf(e.of.fault.name, sizeof e.of.fault.name, "simulated fault %08X", e.of.fault.code);
	to->handler(&e);
}

// differences tells of the codes of one list that another has not.
static void differences(struct subscriber *to, const char *line, const char *list, const char *other, int assertion) {
	char copy[1024], *rest = copy;
	snprintf(copy, sizeof copy, "%s", list);
	for (char *one; (one = strsep(&rest, ",")) != NULL;)
		if (*one && !names(other, one)) tell(to, line, one, to->grade, assertion);
}

static void follow(struct subscriber *to, const char *line) {
	char faults[1024] = "", passed[1024] = "", *rest = passed;
	int n = 0;
	text(line, "faults", faults, sizeof faults);
	if (number(line, "health")) to->grade = number(line, "health"); // that of what ends is as it was
	differences(to, line, faults, to->faults, 1);
	differences(to, line, to->faults, faults, 0);
	strcpy(to->faults, faults);
	text(line, "passed", passed, sizeof passed);
	for (char *one; (one = strsep(&rest, ",")) != NULL;)
		if (*one && ++n > to->passed) tell(to, line, one, strchr(one, ':') ? atoi(strchr(one, ':') + 1) : 0, 2);
	to->passed = n;
}

static void *followAll(void *unused) {
	char line[4096];
	for (;; usleep(50000)) {
		FILE *f = openFile("state", "r");
		while (f != NULL && fgets(line, sizeof line, f) != NULL) {
			pthread_mutex_lock(&subscribing);
			for (struct subscriber *s = subscribers; s != NULL; s = s->next)
				if (isOf(line, "npu", s->card, s->device)) follow(s, line);
			pthread_mutex_unlock(&subscribing);
		}
		if (f != NULL) fclose(f);
	}
	return unused;
}

int dcmi_subscribe_fault_event(int card, int device, Filter filter, void (*handler)(Event *)) {
	DEVICE
	if (filter.flags != 0) return NOT_SUPPORTED;
	char passed[1024] = "";
	struct subscriber *s = calloc(1, sizeof *s);
	s->card = card;
	s->device = device;
	s->handler = handler;
	text(line, "faults", s->faults, sizeof s->faults);
	text(line, "passed", passed, sizeof passed);
	for (const char *at = passed; *at; at++) s->passed += at == passed || at[-1] == ',';
	pthread_mutex_lock(&subscribing);
	static pthread_t follower;
	if (!follower) pthread_create(&follower, NULL, followAll, NULL);
	s->next = subscribers;
	subscribers = s;
	pthread_mutex_unlock(&subscribing);
	return OK;
}

int dcmi_get_topo_info_by_device_id(int card, int device, int card2, int device2, int *type) {
	DEVICE
	int linked = number(line, "linked");
	failed = read_(__func__, card2, device2, line, sizeof line);
	if (failed) return failed;
	*type = card == card2 && device == device2 ? 0 : linked && number(line, "linked") ? 3 : 1;
	return OK;
}
#endif

int dcmi_get_device_health(int card, int device, unsigned int *health) { DEVICE *health = number(line, "health"); return OK; }

int dcmi_get_device_errorcode_v2(int card, int device, int *count, unsigned int *codes, unsigned int size) {
	DEVICE
	char list[1024], *rest = list;
	*count = 0;
	if (!text(line, "faults", list, sizeof list)) return OK;
	for (char *one; (one = strsep(&rest, ",")) != NULL && (unsigned int)*count < size;)
		if (*one) codes[(*count)++] = strtoul(one, NULL, 16);
	return OK;
}

int dcmi_get_device_hbm_info(int card, int device, HBM *out) {
	DEVICE
	memset(out, 0, sizeof *out);
	if (!number(line, "hbm")) return NOT_SUPPORTED;
	out->size = number(line, "hbm");
	out->used = number(line, "used");
	out->mhz = number(line, "mhz");
	out->temperature = number(line, "temperature") + 3;
	out->bandwidth = number(line, "bandwidth");
	return OK;
}

int dcmi_get_device_memory_info_v3(int card, int device, Memory *out) {
	DEVICE
	memset(out, 0, sizeof *out);
	out->size = number(line, "ddr");
	out->available = number(line, "ddr") - number(line, "used");
	out->mhz = number(line, "mhz");
	return number(line, "ddr") ? OK : NOT_SUPPORTED;
}

int dcmi_get_device_utilization_rate(int card, int device, int type, unsigned int *rate) {
	DEVICE
	if (type != 2 && type != 10) return NOT_SUPPORTED;
	if (type == 10 && !number(line, "hbm")) return NOT_SUPPORTED;
	*rate = number(line, type == 2 ? "aicore" : "bandwidth");
	return OK;
}

int dcmi_get_device_frequency(int card, int device, int type, unsigned int *mhz) {
	DEVICE
	if (type != 6 && type != 7 && type != 9) return NOT_SUPPORTED;
	*mhz = number(line, type == 6 ? "mhz" : type == 7 ? "clock" : "most");
	return *mhz ? OK : NOT_SUPPORTED;
}

int dcmi_get_device_temperature(int card, int device, int *degrees) { DEVICE *degrees = number(line, "temperature"); return OK; }

// The power of cards without HBM is told by their controller alone.
int dcmi_get_device_power_info(int card, int device, int *power) {
	DEVICE
	*power = 10 * number(line, "watts");
	return number(line, "hbm") ? OK : NOT_SUPPORTED;
}

int dcmi_get_device_ecc_info(int card, int device, int type, ECC *out) {
	DEVICE
	if (type != 2 || !number(line, "hbm")) return NOT_SUPPORTED;
	memset(out, 0, sizeof *out);
	out->enabled = 1;
	out->dual = number(line, "ecc");
	return OK;
}

int dcmi_get_device_resource_info(int card, int device, Process *list, int *count) {
	DEVICE
	FILE *f = openFile("state", "r");
	if (f == NULL) return IOCTL_FAILED;
	*count = 0;
	while (*count < 32 && fgets(line, sizeof line, f) != NULL)
		if (isOf(line, "process", card, device)) {
			list[*count].pid = number(line, "pid");
			list[(*count)++].bytes = number(line, "bytes");
		}
	fclose(f);
	return OK;
}

// What follows is of vNPUs.


static const struct { const char *chip, *name; int cores, memory; } templates[] = {
	{"910B3", "vir10_3c_32g", 10, 30720}, {"910B3", "vir05_1c_16g", 5, 15360},
	{"310P3", "vir04", 4, 12288}, {"310P3", "vir02", 2, 6144}, {"310P3", "vir01", 1, 3072},
};

// find_ reads the line of a vNPU in a file; 0 where there is none.
static int find_(const char *file, int card, int device, unsigned int id, char *line, int size) {
	int found = 0;
	FILE *f = openFile(file, "r");
	if (f == NULL) return 0;
	while (!found && fgets(line, size, f) != NULL) found = isOf(line, "vnpu", card, device) && number(line, "id") == id;
	fclose(f);
	return found;
}

static int query(int card, int device, int activity, VDevice *out) {
	char line[4096], doing[4096];
	unsigned int id = out->id;
	if (!find_("vnpus", card, device, id, line, sizeof line)) return INVALID_PARAMETER;
	int told = find_("state", card, device, id, doing, sizeof doing);
	if (told && number(doing, "lost")) return NO_DEVICE;
	memset(out, 0, sizeof *out);
	out->id = id;
	text(line, "template", out->info.name, sizeof out->info.name);
	out->info.computing.aic = number(line, "cores");
	out->info.computing.memory = number(line, "memory");
	if (activity) {
		out->info.computing.busy = told ? number(doing, "busy") : 0;
		out->info.computing.memoryTotal = 1024 * number(line, "memory");
		out->info.computing.memoryFree = out->info.computing.memoryTotal - (told ? 1024 * number(doing, "used") : 0);
	}
	return OK;
}

int dcmi_get_device_info(int card, int device, int command, unsigned int sub, void *out, unsigned int *size) {
	DEVICE
	if (command != 52) return NOT_SUPPORTED;
	if (sub == 0 || sub == 5) return *size < sizeof(VDevice) ? INVALID_PARAMETER : query(card, device, sub == 5, out);
	if (sub != 1) return NOT_SUPPORTED;
	if (*size < sizeof(Total)) return INVALID_PARAMETER;
	Total *t = out;
	memset(t, 0, sizeof *t);
	FILE *f = openFile("vnpus", "r");
	while (f != NULL && t->count < 32 && fgets(line, sizeof line, f) != NULL)
		if (isOf(line, "vnpu", card, device)) t->ids[t->count++] = number(line, "id");
	if (f != NULL) fclose(f);
	return OK;
}

static int node(int id, char *path, size_t size) { return snprintf(path, size, "%s/../nodes/vdavinci%d", dir, id); }

// create adds a vNPU to the file, which is locked.
static int create(FILE *f, int card, int device, const char *npu, const char *name, CreateOut *out) {
	char chip[32], line[4096], path[PATH_MAX];
	int at = -1, cores = number(npu, "cores"), memory = number(npu, "hbm") + number(npu, "ddr"), id = 100 + 16 * number(npu, "phys");
	text(npu, "chip", chip, sizeof chip);
	for (int n = 0; n < (int)(sizeof templates / sizeof *templates); n++)
		if (strcmp(templates[n].chip, chip) == 0 && strcmp(templates[n].name, name) == 0) at = n;
	if (at < 0) return INVALID_PARAMETER;
	while (fgets(line, sizeof line, f) != NULL) {
		if (!isOf(line, "vnpu", card, device)) continue;
		cores -= number(line, "cores");
		memory -= number(line, "memory");
		if (number(line, "id") >= id) id = number(line, "id") + 1;
	}
	if (cores < templates[at].cores || memory < templates[at].memory) return OCCUPIED;
	fseek(f, 0, SEEK_END);
	fprintf(f, "vnpu card=%d number=%d id=%d template=%s memory=%d cores=%d\n", card, device, id, name, templates[at].memory, templates[at].cores);
	node(id, path, sizeof path);
	mknod(path, S_IFCHR | 0666, makedev(243, id));
	chmod(path, 0666);
	memset(out, 0, sizeof *out);
	out->id = id;
	return OK;
}

// processes reports whether a program is on a device.
static int processes(int card, int device) {
	char line[4096];
	int found = 0;
	FILE *f = openFile("state", "r");
	while (f != NULL && !found && fgets(line, sizeof line, f) != NULL) found = isOf(line, "process", card, device);
	if (f != NULL) fclose(f);
	return found;
}

int dcmi_create_vdevice(int card, int device, CreateIn *in, CreateOut *out) {
	DEVICE
	if (processes(card, device)) return OCCUPIED;
	FILE *f = openFile("vnpus", "a+");
	if (f == NULL) return INNER;
	flock(fileno(f), LOCK_EX);
	rewind(f);
	int result = create(f, card, device, line, in->name, out);
	fclose(f);
	return result;
}

int dcmi_set_destroy_vdevice(int card, int device, unsigned int id) {
	DEVICE
	char kept[1 << 16] = "", path[PATH_MAX];
	int found = 0;
	if (processes(card, device)) return OCCUPIED;
	FILE *f = openFile("vnpus", "r+");
	if (f == NULL) return INVALID_PARAMETER;
	flock(fileno(f), LOCK_EX);
	while (fgets(line, sizeof line, f) != NULL) {
		int this = isOf(line, "vnpu", card, device) && number(line, "id") == id;
		if (!this && strlen(kept) + strlen(line) < sizeof kept) strcat(kept, line);
		found |= this;
	}
	rewind(f);
	fputs(kept, f);
	fflush(f);
	if (ftruncate(fileno(f), ftell(f))) found = 0;
	fclose(f);
	node(id, path, sizeof path);
	if (found) unlink(path);
	return found ? OK : INVALID_PARAMETER;
}
