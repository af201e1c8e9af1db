// Runs kernels on a processor. Reads orders from standard input and writes an answer to each to standard
// output: a byte that is 0 for success and 1 for an error, the length of what follows, and that: the bytes
// that were asked for, or the text of the error. All numbers are little-endian, lengths have 8 bytes.
//
// Wanted properties: (A) memory is apart from other memory, so that the address sanitizer finds accesses
// beyond it; (B) memory that was not written holds garbage; (C) lanes run in an order that depends on the
// seed, and change only where they wait for each other; (D) lanes that wait for ever are an error; (E) a
// kernel that declares what it touches fails if it touches other bytes, or writes to what it only reads.

#include <dlfcn.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#if defined(__SANITIZE_ADDRESS__)
#define EMULATOR_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define EMULATOR_ASAN 1
#endif
#endif
#ifdef EMULATOR_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

namespace emulator {

Lane* lane = nullptr;

}  // namespace emulator

namespace {

using emulator::Index;

// Each switch of lanes clears the marks of the sanitizer on a whole stack, so small stacks are faster.
constexpr std::size_t STACK_BYTES = 32 << 10;
constexpr unsigned LANES_MAX = 1024;
constexpr unsigned WARP = 32;
constexpr std::uint64_t MEMORY_BYTES_MAX = 1ull << 30;
constexpr std::uint64_t TEXT_BYTES_MAX = 4096;
constexpr unsigned ARGUMENTS_MAX = 64;
constexpr std::uint64_t BLOCKS_MAX = 1 << 20;
constexpr unsigned RANGES_MAX = 1 << 12;

struct Failure : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A generator of numbers that decides the order of lanes (splitmix64).
struct Order {
    std::uint64_t state;

    std::uint64_t next() {
        std::uint64_t z = state += 0x9E3779B97F4A7C15u;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
        return z ^ (z >> 31);
    }

    template <class T>
    void shuffle(std::vector<T>& items) {
        for (std::size_t left = items.size(); left > 1; left--) std::swap(items[left - 1], items[next() % left]);
    }
};

enum class State { Ready, AtBlock, AtWarp, Ended };

// A lane with a stack of its own.
struct Fibre {
    emulator::Lane lane;
    ucontext_t context;
    std::unique_ptr<char[]> stack{new char[STACK_BYTES]};
    State state;
    unsigned mask;
    unsigned number;
    void* fake_stack;
};

using Call = void (*)(void**);

struct Launch {
    Call call;
    void** arguments;
};

std::vector<std::unique_ptr<Fibre>> fibres;
unsigned fibres_used = 0;
Fibre* current = nullptr;
ucontext_t scheduler;
Launch launch;
Order order{0};
// The longest time that a kernel may run. It may wait for a lane in a way that is not noticed.
unsigned seconds_max = 0;

#ifdef EMULATOR_ASAN
void* scheduler_fake_stack = nullptr;
const void* scheduler_stack = nullptr;
std::size_t scheduler_bytes = 0;
#endif

void to_scheduler(bool ends) {
#ifdef EMULATOR_ASAN
    __sanitizer_start_switch_fiber(ends ? nullptr : &current->fake_stack, scheduler_stack, scheduler_bytes);
#endif
    swapcontext(&current->context, &scheduler);
#ifdef EMULATOR_ASAN
    __sanitizer_finish_switch_fiber(current->fake_stack, &scheduler_stack, &scheduler_bytes);
#endif
}

void run_lane() {
#ifdef EMULATOR_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_bytes);
#endif
    launch.call(launch.arguments);
    current->state = State::Ended;
    to_scheduler(true);
}

void resume(Fibre& fibre) {
    current = &fibre;
    emulator::lane = &fibre.lane;
#ifdef EMULATOR_ASAN
    __sanitizer_start_switch_fiber(&scheduler_fake_stack, fibre.stack.get(), STACK_BYTES);
#endif
    swapcontext(&scheduler, &fibre.context);
#ifdef EMULATOR_ASAN
    __sanitizer_finish_switch_fiber(scheduler_fake_stack, nullptr, nullptr);
#endif
    current = nullptr;
}

void begin(Fibre& fibre, unsigned number, Index block, Index blocks, Index threads) {
    Index thread{number % threads.x, number / threads.x % threads.y, number / threads.x / threads.y};
    fibre.lane = {thread, block, threads, blocks, 0xFFFFFFFFu};
    fibre.state = State::Ready;
    fibre.number = number;
    fibre.fake_stack = nullptr;
#ifdef EMULATOR_ASAN
    // A lane of a kernel that has failed may have left its marks on the stack.
    __asan_unpoison_memory_region(fibre.stack.get(), STACK_BYTES);
#endif
    getcontext(&fibre.context);
    fibre.context.uc_stack.ss_sp = fibre.stack.get();
    fibre.context.uc_stack.ss_size = STACK_BYTES;
    fibre.context.uc_link = nullptr;
    makecontext(&fibre.context, run_lane, 0);
}

// The lanes that may run, by warp.
struct Ready {
    std::vector<Fibre*> of_warp[LANES_MAX / WARP];
    unsigned left = 0;

    void add(Fibre* fibre) {
        of_warp[fibre->number / WARP].push_back(fibre);
        left++;
    }

    // Takes a lane of the favourite warp, or of another one if that has none. A warp stays the favourite for a
    // while: one that runs far ahead of the others finds a barrier that is missing.
    Fibre& take(unsigned& favourite) {
        unsigned warps = (fibres_used + WARP - 1) / WARP;
        if (of_warp[favourite].empty() || order.next() % 64 == 0) favourite = unsigned(order.next() % warps);
        while (of_warp[favourite].empty()) favourite = (favourite + 1) % warps;
        std::vector<Fibre*>& own = of_warp[favourite];
        std::swap(own[order.next() % own.size()], own.back());
        Fibre& taken = *own.back();
        own.pop_back();
        left--;
        return taken;
    }
};

// Lets the lanes of a warp go on if all lanes that the mask of one of them names wait with this mask.
void release_warp(const Fibre& one, Ready& ready) {
    unsigned first = one.number / WARP * WARP, mask = one.mask;
    // A mask may name lanes that the block does not have.
    unsigned end = std::min(first + WARP, fibres_used);
    if (!(mask >> (one.number - first) & 1)) throw Failure("a lane waits for a warp with a mask without itself");
    for (unsigned at = first; at < end; at++) {
        const Fibre& other = *fibres[at];
        bool named = mask >> (at - first) & 1;
        if (named && (other.state != State::AtWarp || other.mask != mask)) return;
    }
    for (unsigned at = first; at < end; at++) {
        if (!(mask >> (at - first) & 1)) continue;
        fibres[at]->state = State::Ready;
        ready.add(fibres[at].get());
    }
}

void run_block() {
    Ready ready;
    for (unsigned at = 0; at < fibres_used; at++) ready.add(fibres[at].get());
    unsigned favourite = unsigned(order.next() % fibres_used) / WARP;
    for (;;) {
        while (ready.left > 0) {
            Fibre& fibre = ready.take(favourite);
            resume(fibre);
            if (fibre.state == State::AtWarp) release_warp(fibre, ready);
        }
        unsigned ended = 0, at_block = 0;
        for (unsigned at = 0; at < fibres_used; at++) {
            ended += fibres[at]->state == State::Ended;
            at_block += fibres[at]->state == State::AtBlock;
        }
        if (ended == fibres_used) return;
        if (at_block < fibres_used)
            throw Failure("lanes wait for ever: of " + std::to_string(fibres_used) + " lanes, " +
                          std::to_string(at_block) + " wait for the block, and " + std::to_string(ended) +
                          " have ended");
        for (unsigned at = 0; at < fibres_used; at++) {
            fibres[at]->state = State::Ready;
            ready.add(fibres[at].get());
        }
        favourite = unsigned(order.next() % fibres_used) / WARP;
    }
}

void run_blocks(Index blocks, Index threads, void (*forget_shared)()) {
    fibres_used = threads.x * threads.y * threads.z;
    while (fibres.size() < fibres_used) fibres.emplace_back(new Fibre);
    std::vector<Index> all;
    for (unsigned z = 0; z < blocks.z; z++)
        for (unsigned y = 0; y < blocks.y; y++)
            for (unsigned x = 0; x < blocks.x; x++) all.push_back({x, y, z});
    order.shuffle(all);
    for (Index block : all) {
        forget_shared();
        for (unsigned at = 0; at < fibres_used; at++) begin(*fibres[at], at, block, blocks, threads);
        run_block();
    }
}

// Memory of the device. Its bytes begin with garbage that is not a number.
struct Memory {
    std::unique_ptr<char[]> bytes;
    std::uint64_t length;
};

std::map<std::uint64_t, Memory> memories;
std::vector<void*> modules;

void read_exactly(void* to, std::size_t bytes) {
    char* at = static_cast<char*>(to);
    while (bytes > 0) {
        ssize_t got = read(0, at, bytes);
        if (got <= 0) std::exit(0);
        at += got;
        bytes -= std::size_t(got);
    }
}

template <class T>
T take() {
    T value;
    read_exactly(&value, sizeof value);
    return value;
}

std::string take_text() {
    auto length = take<std::uint64_t>();
    if (length > TEXT_BYTES_MAX) std::exit(2);
    std::string text(length, '\0');
    read_exactly(text.data(), length);
    return text;
}

void write_exactly(const void* from, std::size_t bytes) {
    const char* at = static_cast<const char*>(from);
    while (bytes > 0) {
        ssize_t put = write(1, at, bytes);
        if (put <= 0) std::exit(0);
        at += put;
        bytes -= std::size_t(put);
    }
}

void answer(char status, const void* bytes, std::uint64_t length) {
    write_exactly(&status, 1);
    write_exactly(&length, sizeof length);
    write_exactly(bytes, length);
}

Memory& memory_of(std::uint64_t id) {
    auto found = memories.find(id);
    if (found == memories.end()) throw Failure("there is no memory " + std::to_string(id));
    return found->second;
}

char* part_of(std::uint64_t id, std::uint64_t offset, std::uint64_t length) {
    Memory& memory = memory_of(id);
    if (offset > memory.length || length > memory.length - offset)
        throw Failure("memory " + std::to_string(id) + " has " + std::to_string(memory.length) + " bytes, but " +
                      std::to_string(length) + " from " + std::to_string(offset) + " are asked for");
    return memory.bytes.get() + offset;
}

void allocate() {
    auto id = take<std::uint64_t>(), length = take<std::uint64_t>();
    if (length > MEMORY_BYTES_MAX) throw Failure("out of memory");
    Memory memory{std::unique_ptr<char[]>(new char[length]), length};
    std::memset(memory.bytes.get(), 0xFF, length);
    memories.emplace(id, std::move(memory));
    answer(0, nullptr, 0);
}

void release() {
    auto id = take<std::uint64_t>();
    memory_of(id);
    memories.erase(id);
    answer(0, nullptr, 0);
}

void upload() {
    auto id = take<std::uint64_t>(), offset = take<std::uint64_t>(), length = take<std::uint64_t>();
    if (length > MEMORY_BYTES_MAX) std::exit(2);
    // All bytes are read in any case, so that the next order begins behind them.
    std::unique_ptr<char[]> bytes(new char[length]);
    read_exactly(bytes.get(), length);
    std::memcpy(part_of(id, offset, length), bytes.get(), length);
    answer(0, nullptr, 0);
}

void download() {
    auto id = take<std::uint64_t>(), offset = take<std::uint64_t>(), length = take<std::uint64_t>();
    answer(0, part_of(id, offset, length), length);
}

void load() {
    std::string path = take_text();
    void* module = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!module) throw Failure(dlerror());
    modules.push_back(module);
    answer(0, nullptr, 0);
}

// Bytes that a kernel declares to touch.
struct Range {
    std::uint64_t id, offset, length;
    bool written;

    bool meets(const Range& other) const {
        return id == other.id && offset < other.offset + other.length && other.offset < offset + length;
    }
};

// Hides all memory of a kernel from it but for the ranges that it declares, as long as this value lives.
struct Declared {
    std::vector<Range> ranges;
    std::vector<std::uint64_t> ids;
    std::vector<std::uint64_t> sums;

    Declared(std::vector<Range> of, std::vector<std::uint64_t> in) : ranges(std::move(of)), ids(std::move(in)) {
        for (const Range& range : ranges) part_of(range.id, range.offset, range.length);
        sums = sums_of_read();
#ifdef EMULATOR_ASAN
        for (std::uint64_t id : ids) __asan_poison_memory_region(memory_of(id).bytes.get(), memory_of(id).length);
        for (const Range& range : ranges)
            __asan_unpoison_memory_region(part_of(range.id, range.offset, range.length), range.length);
#endif
    }

    ~Declared() { show(); }

    Declared(const Declared&) = delete;

    void show() {
#ifdef EMULATOR_ASAN
        for (std::uint64_t id : ids) __asan_unpoison_memory_region(memory_of(id).bytes.get(), memory_of(id).length);
#endif
    }

    // Returns a sum of the bytes of each range that is only read.
    std::vector<std::uint64_t> sums_of_read() const {
        std::vector<std::uint64_t> all;
        for (const Range& range : ranges) {
            std::uint64_t sum = 0xCBF29CE484222325u;
            bool read = !std::any_of(ranges.begin(), ranges.end(), [&](const Range& other) {
                return other.written && range.meets(other);
            });
            const char* bytes = part_of(range.id, range.offset, range.length);
            for (std::uint64_t at = 0; read && at < range.length; at++)
                sum = (sum ^ static_cast<unsigned char>(bytes[at])) * 0x100000001B3u;
            all.push_back(sum);
        }
        return all;
    }

    void check() {
        show();
        std::vector<std::uint64_t> now = sums_of_read();
        for (std::size_t at = 0; at < ranges.size(); at++)
            if (now[at] != sums[at])
                throw Failure("it has written to the bytes " + std::to_string(ranges[at].offset) + " to " +
                              std::to_string(ranges[at].offset + ranges[at].length) + " of memory " +
                              std::to_string(ranges[at].id) + ", which it declares only to read");
    }
};

void run() {
    std::string name = take_text();
    auto module_number = take<std::uint64_t>();
    auto blocks = take<Index>(), threads = take<Index>();
    auto count = take<std::uint32_t>();
    if (count > ARGUMENTS_MAX) std::exit(2);
    std::vector<char> kinds;
    std::vector<std::uint64_t> values(count);
    std::vector<void*> arguments;
    std::vector<std::uint64_t> ids;
    std::string fault;
    for (unsigned at = 0; at < count; at++) {
        auto kind = take<char>();
        if (kind == 'r' || kind == 'w') {
            auto id = take<std::uint64_t>(), offset = take<std::uint64_t>();
            try {
                char* pointer = part_of(id, offset, 0);
                std::memcpy(&values[at], &pointer, sizeof pointer);
                ids.push_back(id);
            } catch (const Failure& failure) {
                fault = failure.what();
            }
        } else if (kind == 'i' || kind == 'f' || kind == 'l') {
            read_exactly(&values[at], kind == 'l' ? 8 : 4);
        } else {
            std::exit(2);
        }
        kinds.push_back(kind);
        arguments.push_back(&values[at]);
    }
    bool declares = take<char>() != 0;
    auto count_of_ranges = take<std::uint32_t>();
    if (count_of_ranges > RANGES_MAX) std::exit(2);
    std::vector<Range> ranges(count_of_ranges);
    for (Range& range : ranges) {
        range.id = take<std::uint64_t>();
        range.offset = take<std::uint64_t>();
        range.length = take<std::uint64_t>();
        range.written = take<char>() != 0;
    }
    if (!fault.empty()) throw Failure(fault);
    if (module_number >= modules.size()) std::exit(2);
    void* module = modules[module_number];
    auto call = reinterpret_cast<Call>(dlsym(module, ("emulated_call_" + name).c_str()));
    if (!call) throw Failure("there is no kernel '" + name + "'");
    auto takes = reinterpret_cast<bool (*)(const char*, unsigned)>(dlsym(module, ("emulated_takes_" + name).c_str()));
    if (!takes(kinds.data(), count)) throw Failure("the kernel '" + name + "' takes other arguments");
    std::uint64_t lanes = std::uint64_t(threads.x) * threads.y * threads.z;
    if (lanes == 0 || lanes > LANES_MAX || threads.z > 64)
        throw Failure("the kernel '" + name + "' cannot have " + std::to_string(lanes) + " lanes in a block");
    std::uint64_t count_of_blocks = std::uint64_t(blocks.x) * blocks.y * blocks.z;
    if (count_of_blocks == 0 || count_of_blocks > BLOCKS_MAX || blocks.y > 65535 || blocks.z > 65535)
        throw Failure("the kernel '" + name + "' cannot have " + std::to_string(count_of_blocks) + " blocks");
    auto forget = reinterpret_cast<void (*)()>(dlsym(module, "emulated_forget_shared"));
    launch = {call, arguments.data()};
    alarm(seconds_max);
    try {
        Declared declared(std::move(ranges), declares ? std::move(ids) : std::vector<std::uint64_t>());
        run_blocks(blocks, threads, forget);
        declared.check();
    } catch (const Failure& failure) {
        alarm(0);
        throw Failure("kernel '" + name + "': " + failure.what());
    }
    alarm(0);
    answer(0, nullptr, 0);
}

// Ends the process, because a kernel has run for too long.
void end(int) {
    const char text[] = "ERROR: a kernel has run for too long\n";
    if (write(2, text, sizeof text - 1) < 0) _exit(4);
    _exit(3);
}

}  // namespace

namespace emulator {

void wait_for_block() {
    current->state = State::AtBlock;
    to_scheduler(false);
}

void wait_for_warp(unsigned mask) {
    current->state = State::AtWarp;
    current->mask = mask;
    to_scheduler(false);
}

unsigned lane_number() { return current->number % WARP; }

unsigned shown_by(unsigned mask, unsigned number) {
    unsigned at = current->number / WARP * WARP + number;
    bool shows = number < WARP && (mask >> number & 1) && at < fibres_used;
    return shows ? fibres[at]->lane.shown : 0xFFFFFFFFu;
}

}  // namespace emulator

int main(int count, char** texts) {
    std::signal(SIGALRM, end);
    if (count != 3) return 2;
    order.state = std::strtoull(texts[1], nullptr, 10);
    seconds_max = unsigned(std::strtoul(texts[2], nullptr, 10));
    for (;;) {
        auto kind = take<char>();
        try {
            switch (kind) {
                case 'a': allocate(); break;
                case 'f': release(); break;
                case 'u': upload(); break;
                case 'd': download(); break;
                case 'l': load(); break;
                case 'r': run(); break;
                default: return 2;
            }
        } catch (const Failure& failure) {
            std::string text = failure.what();
            answer(1, text.data(), text.size());
        }
    }
}
