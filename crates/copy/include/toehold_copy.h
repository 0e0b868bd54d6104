/* toehold_copy.h: asynchronous memory copies.
 *
 * Build the library with
 *     cargo rustc -p toehold-copy --release --features capi --crate-type staticlib
 * and link with -ltoehold_copy -lpthread -ldl -lm. `examples/copy.c` is a whole program.
 *
 * A channel belongs to one thread at a time. Every call may be made from any thread.
 */
#ifndef TOEHOLD_COPY_H
#define TOEHOLD_COPY_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct toehold_copy_channel toehold_copy_channel;

/* Names one operation; they count up from one. */
typedef uint64_t toehold_copy_cookie;

/* Flags of an operation. */
enum {
	TOEHOLD_COPY_FENCE = 1,      /* begin when every earlier operation is over */
	TOEHOLD_COPY_CACHE = 2,      /* the target will be read soon: leave it in the cache */
	TOEHOLD_COPY_SUBMIT_NOW = 4, /* ring the doorbell now */
	TOEHOLD_COPY_URGENT = 8,     /* the caller is going to wait at once */
};

/* What a function returns when it cannot do what it was asked for. Nothing has been done then. */
enum {
	TOEHOLD_COPY_FULL = -1,           /* every entry is in use: poll, then try again */
	TOEHOLD_COPY_OVERLAP = -2,        /* source and target overlap */
	TOEHOLD_COPY_NULL = -3,           /* a null pointer with a length, or a null channel */
	TOEHOLD_COPY_TOO_LONG = -4,       /* the range wraps around the end of the address space */
	TOEHOLD_COPY_UNEVEN = -5,         /* sources and targets have different total lengths */
	TOEHOLD_COPY_TOO_MANY_PARTS = -6, /* more parts than the channel has entries */
	TOEHOLD_COPY_NOT_REGISTERED = -7, /* this engine moves only registered memory */
	TOEHOLD_COPY_TIMED_OUT = -8,      /* not over by the deadline; it goes on */
	TOEHOLD_COPY_NO_SUCH_COOKIE = -9, /* this channel has not issued it */
};

/* How an operation stands. */
enum {
	TOEHOLD_COPY_PENDING = 0,
	TOEHOLD_COPY_DONE = 1,
	TOEHOLD_COPY_FAILED = 2,  /* the target holds an unknown mixture */
	TOEHOLD_COPY_RETIRED = 3, /* over so long ago that no more is known */
};

struct toehold_copy_status {
	int state;
	uint32_t crc32c;  /* when done, if it was asked for */
	uint64_t bytes;   /* in place at the beginning of the target, while pending */
	uint64_t address; /* that could not be used, when failed and known */
};

/* How to wait. */
enum {
	TOEHOLD_COPY_SPIN = 0,
	TOEHOLD_COPY_YIELD = 1,
	TOEHOLD_COPY_PARK = 2,
};

/* Never times out. */
#define TOEHOLD_COPY_FOREVER UINT64_MAX

struct toehold_copy_part {
	void *base;
	size_t len;
};

/* Opens a channel to the engine of this name ("auto", "cpu", "cpu-nt", "worker", "dsa", "dmadev"), or, for NULL, to
 * the one in TOEHOLD_COPY_ENGINE, or "auto". The processor does the work if that is not to be had; then, and
 * whenever there is something to say, `note` gets up to `note_len` bytes of it, ended by a zero. NULL only when the
 * name is not text. */
toehold_copy_channel *toehold_copy_open(const char *engine, size_t entries, char *note, size_t note_len);

/* Waits for everything, then closes. NULL is allowed. */
void toehold_copy_close(toehold_copy_channel *channel);

/* The engine's name. It is constant. */
const char *toehold_copy_engine(const toehold_copy_channel *channel);

/* Each of these returns zero and a cookie, or an error. Until the operation is over its memory is the engine's: the
 * source must not change, the target must not be touched, except for bytes that are in place. */
int toehold_copy_copy(toehold_copy_channel *channel, const void *source, void *target, size_t len, unsigned flags,
		      toehold_copy_cookie *cookie);
int toehold_copy_fill(toehold_copy_channel *channel, void *target, size_t len, uint64_t pattern, unsigned flags,
		      toehold_copy_cookie *cookie);
int toehold_copy_copy_crc32c(toehold_copy_channel *channel, const void *source, void *target, size_t len,
			     uint32_t seed, unsigned flags, toehold_copy_cookie *cookie);

/* The sources, one after another, to the targets. The cookie is that of the last part: wait through it. Zero when there
 * was nothing to copy. */
int toehold_copy_vectored(toehold_copy_channel *channel, const struct toehold_copy_part *sources, size_t source_count,
			  const struct toehold_copy_part *targets, size_t target_count, unsigned flags,
			  toehold_copy_cookie *cookie);

/* Rings the engine's doorbell for what was submitted since the last. */
void toehold_copy_flush(toehold_copy_channel *channel);

/* Learns what has ended. Everything up to the returned cookie is over. */
toehold_copy_cookie toehold_copy_poll(toehold_copy_channel *channel);

int toehold_copy_status(toehold_copy_channel *channel, toehold_copy_cookie cookie, struct toehold_copy_status *status);

/* Waits until this operation is over, or, `through`, until every earlier one is too. */
int toehold_copy_wait(toehold_copy_channel *channel, toehold_copy_cookie cookie, int how, uint64_t patience_ns);
int toehold_copy_wait_through(toehold_copy_channel *channel, toehold_copy_cookie cookie, int how,
			      uint64_t patience_ns);

/* Registered memory: page-aligned, zeroed, and never copied on write. A child finds zeros. NULL when there is none. */
void *toehold_copy_buffer_new(size_t len);

/* Frees it. NULL is allowed; anything else that `toehold_copy_buffer_new` did not return is ignored. */
void toehold_copy_buffer_free(void *buffer);

#ifdef __cplusplus
}
#endif

#endif
