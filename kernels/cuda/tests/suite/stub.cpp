// A driver and a compiler of NVIDIA's interface without a card, so that what drives a card is tested on every
// machine. Kernels are not compiled: the stub has the one that the tests launch.
//
// Wanted properties: (A) what a stream is asked is done as late as the interface allows, or at once with
// STUB_EAGER; (B) a wrong use of the interface ends the process; (C) so does anything that is not released
// when the context is; (D) STUB_FAULT lets something fail; (E) STUB_TRACE shows what takes long.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace {

enum {
    OK = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NO_DEVICE = 100,
    PTX = 222,
    NOT_FOUND = 500,
    NOT_READY = 600,
    OUT_OF_RESOURCES = 701,
    CAPTURE_INVALIDATED = 901
};

constexpr std::size_t MEMORY = std::size_t(1) << 30;

[[noreturn]] void wrong(const char* what) {
    std::fprintf(stderr, "STUB: %s\n", what);
    std::abort();
}

bool fails(const char* what) {
    const char* fault = std::getenv("STUB_FAULT");
    return fault && !std::strcmp(fault, what);
}

void trace(const char* what) {
    if (std::getenv("STUB_TRACE")) std::fprintf(stderr, "STUB: %s\n", what);
}

int number(const char* name, int otherwise) {
    const char* text = std::getenv(name);
    return text ? std::atoi(text) : otherwise;
}

struct Stream;

// The number of works that were done.
std::uint64_t now = 0;

struct Work {
    std::function<void()> run;
    // What the work waits for.
    Stream* stream;
    std::uint64_t position;
    // Where the work uses memory of the card or of the machine.
    std::vector<const char*> uses;
};

struct Stream {
    std::deque<Work> waiting;
    std::uint64_t asked = 0, done = 0;
    // When each work was done, and when the stream was created.
    std::vector<std::uint64_t> times{now};
    bool captures = false, is_invalid = false;
    std::vector<Work> captured;
};

struct Event {
    Stream* stream = nullptr;
    std::uint64_t position = 0;
    bool is_timed = false;
};

struct Module {
    std::string text;
};

struct Function {
    std::string name;
};

struct Graph {
    std::vector<Work> all;
};

struct Sized {
    char* bytes;
    std::size_t length;
};

std::set<Stream*> streams;
std::set<Event*> events;
std::set<Module*> modules;
std::set<Graph*> graphs, executables;
std::vector<Function*> functions;
std::vector<Sized> memories, pinned;
int contexts = 0;
bool is_started = false;
thread_local bool is_bound = false;

// Is destroyed when the process ends, as the library is then.
struct End {
    ~End() {
        if (contexts > 0) wrong("the process ends while a card is open");
        trace("the library is taken down");
    }
} end;

void drain(Stream* stream, std::uint64_t position) {
    while (stream->done < position) {
        Work work = std::move(stream->waiting.front());
        stream->waiting.pop_front();
        if (work.stream) drain(work.stream, work.position);
        if (work.run) work.run();
        stream->done++;
        stream->times.push_back(++now);
    }
}

void need(bool holds, const char* what) {
    if (!holds) wrong(what);
    if (!is_bound || contexts == 0) wrong("the context is not bound");
}

void ask(Stream* stream, Work work) {
    need(streams.count(stream), "a stream that does not exist");
    if (stream->captures) wrong("a capture of other work than a launch");
    stream->waiting.push_back(std::move(work));
    stream->asked++;
    if (number("STUB_EAGER", 0)) drain(stream, stream->asked);
}

char* part(std::vector<Sized>& all, const char* at, std::size_t length) {
    for (Sized& one : all)
        if (at >= one.bytes && at + length <= one.bytes + one.length) return one.bytes + (at - one.bytes);
    wrong("memory that does not exist");
}

int allocate(std::vector<Sized>& all, std::size_t length, char** bytes) {
    std::size_t used = length;
    for (const Sized& one : all) used += one.length;
    if (length > MEMORY || used > MEMORY) return OUT_OF_MEMORY;
    *bytes = static_cast<char*>(std::malloc(length));
    std::memset(*bytes, 0xFF, length);
    all.push_back({*bytes, length});
    return OK;
}

void release(std::vector<Sized>& all, const char* bytes) {
    for (std::size_t at = 0; at < all.size(); at++) {
        if (all[at].bytes != bytes) continue;
        for (Stream* stream : streams)
            for (const Work& work : stream->waiting)
                for (const char* use : work.uses)
                    if (use >= bytes && use < bytes + all[at].length)
                        wrong("memory is released before the work is done that uses it");
        std::free(all[at].bytes);
        all.erase(all.begin() + std::ptrdiff_t(at));
        return;
    }
    wrong("memory is released that does not exist");
}

template <class T>
int destroy(std::set<T*>& all, T* one, const char* what) {
    need(all.erase(one), what);
    delete one;
    return OK;
}

struct Program {
    std::string text, log, compiled;
};

}  // namespace

extern "C" {

int cuDriverGetVersion(int* version) {
    *version = fails("old driver") ? 11020 : 12080;
    return OK;
}

int cuInit(unsigned) {
    is_started = true;
    return fails("no device") ? NO_DEVICE : OK;
}

int cuGetErrorName(int error, const char** text) {
    *text = error == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : error == PTX ? "CUDA_ERROR_PTX" : "CUDA_ERROR";
    return OK;
}

int cuGetErrorString(int, const char** text) {
    *text = "what the driver says";
    return OK;
}

int cuDeviceGetCount(int* count) {
    if (!is_started) wrong("the driver is not started");
    *count = number("STUB_CARDS", 1);
    return OK;
}

int cuDeviceGet(int* device, int index) {
    *device = index;
    return index >= 0 && index < number("STUB_CARDS", 1) ? OK : 101;
}

int cuDeviceGetName(char* name, int length, int device) {
    std::snprintf(name, std::size_t(length), "Stub %d", device);
    return OK;
}

int cuDeviceTotalMem_v2(std::size_t* bytes, int) {
    *bytes = MEMORY;
    return OK;
}

int cuDeviceGetAttribute(int* value, int attribute, int) {
    if (attribute != 75 && attribute != 76) return INVALID_VALUE;
    *value = attribute == 75 ? number("STUB_CAPABILITY", 90) / 10 : number("STUB_CAPABILITY", 90) % 10;
    return OK;
}

int cuDevicePrimaryCtxRetain(void** context, int) {
    *context = &contexts;
    contexts++;
    return OK;
}

int cuDevicePrimaryCtxRelease_v2(int) {
    if (--contexts > 0) return OK;
    if (!streams.empty() || !events.empty() || !modules.empty() || !graphs.empty() || !executables.empty() ||
        !memories.empty() || !pinned.empty())
        wrong("something is not released");
    return OK;
}

int cuCtxSetCurrent(void* context) {
    if (context != &contexts || contexts == 0) wrong("a context that does not exist");
    is_bound = true;
    return OK;
}

int cuCtxSynchronize() { wrong("a wait for the whole context, in which others may capture"); }

int cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
    need(true, "");
    *free = *total = MEMORY;
    for (const Sized& one : memories) *free -= one.length;
    return OK;
}

int cuMemAlloc_v2(std::uint64_t* address, std::size_t length) {
    need(length > 0, "memory without bytes");
    char* bytes = nullptr;
    int answer = allocate(memories, length, &bytes);
    *address = reinterpret_cast<std::uint64_t>(bytes);
    return answer;
}

int cuMemFree_v2(std::uint64_t address) {
    need(true, "");
    release(memories, reinterpret_cast<char*>(address));
    return OK;
}

int cuMemHostAlloc(void** bytes, std::size_t length, unsigned) {
    need(true, "");
    if (fails("no memory of the host")) return OUT_OF_MEMORY;
    trace("pinned memory");
    return allocate(pinned, length, reinterpret_cast<char**>(bytes));
}

int cuMemFreeHost(void* bytes) {
    need(true, "");
    release(pinned, static_cast<char*>(bytes));
    return OK;
}

int cuMemcpyHtoDAsync_v2(std::uint64_t address, const void* bytes, std::size_t length, Stream* stream) {
    char* to = part(memories, reinterpret_cast<char*>(address), length);
    const char* from = part(pinned, static_cast<const char*>(bytes), length);
    ask(stream, {[=] { std::memcpy(to, from, length); }, nullptr, 0, {to, from}});
    return OK;
}

int cuMemcpyDtoDAsync_v2(std::uint64_t to, std::uint64_t from, std::size_t length, Stream* stream) {
    char* target = part(memories, reinterpret_cast<char*>(to), length);
    const char* source = part(memories, reinterpret_cast<char*>(from), length);
    ask(stream, {[=] { std::memcpy(target, source, length); }, nullptr, 0, {target, source}});
    return OK;
}

int cuMemcpyDtoHAsync_v2(void* bytes, std::uint64_t address, std::size_t length, Stream* stream) {
    const char* from = part(memories, reinterpret_cast<char*>(address), length);
    char* to = part(pinned, static_cast<char*>(bytes), length);
    std::memset(to, 0xEE, length);
    ask(stream, {[=] { std::memcpy(to, from, length); }, nullptr, 0, {to, from}});
    return OK;
}

int cuModuleLoadData(Module** module, const void* image) {
    need(true, "");
    if (fails("too new")) return PTX;
    std::string text = static_cast<const char*>(image);
    if (text.rfind(number("STUB_CAPABILITY", 90) < 100 ? "program" : "ptx", 0) != 0) wrong("another kind of program");
    *module = *modules.insert(new Module{text}).first;
    return OK;
}

int cuModuleUnload(Module* module) { return destroy(modules, module, "a module that does not exist"); }

int cuModuleGetFunction(Function** function, Module* module, const char* name) {
    need(modules.count(module), "a module that does not exist");
    if (module->text.find("__global__ void " + std::string(name) + "(") == std::string::npos) return NOT_FOUND;
    functions.push_back(new Function{name});
    *function = functions.back();
    return OK;
}

int cuFuncGetAttribute(int* value, int, Function*) {
    *value = 32;
    return OK;
}

int cuStreamCreate(Stream** stream, unsigned flags) {
    need(flags == 1, "a stream that waits for others");
    *stream = *streams.insert(new Stream).first;
    return OK;
}

int cuStreamDestroy_v2(Stream* stream) {
    if (!stream->waiting.empty()) wrong("a stream is destroyed before its work is done");
    return destroy(streams, stream, "a stream that does not exist");
}

int cuStreamSynchronize(Stream* stream) {
    need(streams.count(stream), "a stream that does not exist");
    if (stream->captures) wrong("a wait for a stream that is captured");
    drain(stream, stream->asked);
    return OK;
}

int cuStreamWaitEvent(Stream* stream, Event* event, unsigned) {
    need(events.count(event) && event->stream, "an event that does not exist or was not recorded");
    ask(stream, {nullptr, event->stream, event->position, {}});
    return OK;
}

int cuEventCreate(Event** event, unsigned flags) {
    need(flags == 1 || flags == 3, "an event for which a thread spins");
    *event = *events.insert(new Event).first;
    (*event)->is_timed = flags == 1;
    return OK;
}

int cuEventRecord(Event* event, Stream* stream) {
    need(events.count(event) && streams.count(stream), "an event or a stream that does not exist");
    if (stream->captures) wrong("a capture of an event");
    *event = {stream, stream->asked, event->is_timed};
    return OK;
}

int cuEventQuery(Event* event) {
    need(events.count(event) && event->stream, "an event that does not exist or was not recorded");
    return event->stream->done >= event->position ? OK : NOT_READY;
}

int cuEventSynchronize(Event* event) {
    need(events.count(event) && event->stream, "an event that does not exist or was not recorded");
    drain(event->stream, event->position);
    return OK;
}

// Each work takes one millisecond, and only one runs at a time.
int cuEventElapsedTime_v2(float* ms, Event* from, Event* until) {
    for (Event* event : {from, until}) {
        need(events.count(event) && event->stream, "an event that does not exist or was not recorded");
        need(event->is_timed, "the time of an event that measures none");
        if (event->stream->done < event->position) return NOT_READY;
    }
    *ms = float(until->stream->times[until->position]) - float(from->stream->times[from->position]);
    return OK;
}

int cuEventDestroy_v2(Event* event) { return destroy(events, event, "an event that does not exist"); }

int cuStreamBeginCapture_v2(Stream* stream, int) {
    need(streams.count(stream) && !stream->captures, "a stream that does not exist or is captured");
    stream->captures = true;
    return OK;
}

int cuStreamEndCapture(Stream* stream, Graph** graph) {
    need(streams.count(stream) && stream->captures, "a stream that does not exist or is not captured");
    std::vector<Work> captured;
    captured.swap(stream->captured);
    stream->captures = false;
    if (std::exchange(stream->is_invalid, false)) {
        *graph = nullptr;
        return CAPTURE_INVALIDATED;
    }
    *graph = *graphs.insert(new Graph{captured}).first;
    return OK;
}

int cuGraphInstantiateWithFlags(Graph** executable, Graph* graph, unsigned long long) {
    need(graphs.count(graph), "a graph that does not exist");
    *executable = *executables.insert(new Graph(*graph)).first;
    return OK;
}

int cuGraphDestroy(Graph* graph) { return destroy(graphs, graph, "a graph that does not exist"); }

int cuGraphExecDestroy(Graph* graph) { return destroy(executables, graph, "a graph that does not exist"); }

int cuGraphLaunch(Graph* graph, Stream* stream) {
    need(executables.count(graph), "a graph that does not exist");
    for (const Work& one : graph->all) ask(stream, one);
    return OK;
}

int cuLaunchKernel(Function* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   Stream* stream, void** arguments, void**) {
    if (function->name != "average") wrong("a kernel that the stub does not have");
    auto next = *static_cast<float**>(arguments[0]);
    auto averages = *static_cast<const float**>(arguments[1]), value = *static_cast<const float**>(arguments[2]);
    auto n = *static_cast<std::uint64_t*>(arguments[3]);
    auto share = *static_cast<float*>(arguments[4]);
    auto run = [=] {
        for (std::uint64_t at = 0; at < n; at++) next[at] = averages[at] - share * (averages[at] - value[at]);
    };
    need(streams.count(stream), "a stream that does not exist");
    Work work = {run, nullptr, 0, {}};
    for (const float* use : {static_cast<const float*>(next), averages, value})
        work.uses.push_back(reinterpret_cast<const char*>(use));
    if (!stream->captures) {
        ask(stream, work);
    } else if (stream->is_invalid) {
        return CAPTURE_INVALIDATED;
    } else if (share == 0.25f && fails("a captured launch")) {
        stream->is_invalid = true;
        return OUT_OF_RESOURCES;
    } else {
        stream->captured.push_back(work);
    }
    return OK;
}

int nvrtcVersion(int* major, int* minor) {
    *major = 13;
    *minor = 5;
    return OK;
}

int nvrtcGetNumSupportedArchs(int* count) {
    *count = 3;
    return OK;
}

int nvrtcGetSupportedArchs(int* all) {
    all[0] = 75;
    all[1] = 80;
    all[2] = 90;
    return OK;
}

int nvrtcCreateProgram(Program** program, const char* text, const char*, int, const char**, const char**) {
    *program = new Program{text, "", ""};
    return OK;
}

int nvrtcDestroyProgram(Program** program) {
    delete *program;
    *program = nullptr;
    return OK;
}

int nvrtcCompileProgram(Program* program, int count, const char** options) {
    trace("compiled");
    std::string option = count == 1 ? options[0] : "";
    bool is_ptx = option == "--gpu-architecture=compute_90";
    if (!is_ptx && option != "--gpu-architecture=sm_90") return 5;
    program->compiled = (is_ptx ? "ptx\n" : "program\n") + program->text;
    return OK;
}

int nvrtcGetCUBINSize(Program* program, std::size_t* size) {
    *size = program->compiled.size() + 1;
    return OK;
}

int nvrtcGetCUBIN(Program* program, char* bytes) {
    std::memcpy(bytes, program->compiled.c_str(), program->compiled.size() + 1);
    return OK;
}

int nvrtcGetPTXSize(Program* program, std::size_t* size) { return nvrtcGetCUBINSize(program, size); }

int nvrtcGetPTX(Program* program, char* bytes) { return nvrtcGetCUBIN(program, bytes); }

int nvrtcGetProgramLogSize(Program*, std::size_t* size) {
    *size = 1;
    return OK;
}

int nvrtcGetProgramLog(Program*, char* log) {
    *log = 0;
    return OK;
}

}  // extern "C"
