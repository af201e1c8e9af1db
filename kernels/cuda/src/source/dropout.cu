// Random numbers, as in kernels/src/cpu/philox.rs and random.rs, and dropout, as in dropout.rs.

// Replaces a counter with its random words: Philox4x32-10.
static __device__ __forceinline__ void philox(unsigned (&words)[4], unsigned key0, unsigned key1) {
    for (int round = 0; round < 10; round++) {
        Count product0 = (Count)0xD2511F53u * words[0], product1 = (Count)0xCD9E8D57u * words[2];
        words[0] = (unsigned)(product1 >> 32) ^ words[1] ^ key0;
        words[1] = (unsigned)product1;
        words[2] = (unsigned)(product0 >> 32) ^ words[3] ^ key1;
        words[3] = (unsigned)product0;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
}

// `example` is the number of elements of an example. A thread draws the random words of four elements, which
// are neighbours in the whole batch; the device's first element may be any of its four.
extern "C" __global__ void dropout(float* to, const float* from, const Step* step, Count n, Count stream,
                                   Count example, float rate, float keep) {
    Count first = step->first * example, seed = step->random;
    unsigned skipped = first % 4;
    FOR_EACH(group, (skipped + n + 3) / 4) {
        Count number = first / 4 + group;
        unsigned words[4] = {(unsigned)number, (unsigned)(number >> 32), (unsigned)stream,
                             (unsigned)(stream >> 32)};
        philox(words, (unsigned)seed, (unsigned)(seed >> 32));
        for (int word = 0; word < 4; word++) {
            // An element before the first one has a very large index.
            Count at = 4 * group + word - skipped;
            if (at < n) {
                float random = (float)(words[word] >> 8) / 16777216.0f;
                to[at] = random >= rate ? from[at] * keep : 0.0f;
            }
        }
    }
}
