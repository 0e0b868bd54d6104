/* Copies a megabyte while it does something else.
 *
 *     cargo rustc -p toehold-copy --release --features capi --crate-type staticlib
 *     cc -I crates/copy/include crates/copy/examples/copy.c -L target/release -ltoehold_copy -lpthread -ldl -lm -o copy
 */
#include <stdio.h>
#include <string.h>
#include <toehold_copy.h>

#define LEN ((size_t)1 << 20)

int main(int argc, char **argv)
{
	char note[256];
	toehold_copy_channel *channel = toehold_copy_open(argc > 1 ? argv[1] : NULL, 64, note, sizeof(note));
	unsigned char *source = toehold_copy_buffer_new(LEN);
	unsigned char *target = toehold_copy_buffer_new(LEN);
	struct toehold_copy_status status;
	toehold_copy_cookie cookie;
	unsigned long work = 0;
	int error;

	if (!channel || !source || !target)
		return 1;
	if (note[0])
		printf("note: %s\n", note);
	memset(source, 7, LEN);

	error = toehold_copy_copy(channel, source, target, LEN, TOEHOLD_COPY_SUBMIT_NOW, &cookie);
	if (error)
		return 1;
	while (toehold_copy_poll(channel) < cookie)
		work++; /* something useful */
	printf("%s: copied, with %s turns of other work\n", toehold_copy_engine(channel), work ? "some" : "no");
	if (memcmp(source, target, LEN) != 0)
		return 1;

	/* A checksum in the same pass; sleep until it is there. */
	if (toehold_copy_copy_crc32c(channel, "123456789", target, 9, 0, 0, &cookie) != 0 ||
	    toehold_copy_wait(channel, cookie, TOEHOLD_COPY_PARK, TOEHOLD_COPY_FOREVER) != 0 ||
	    toehold_copy_status(channel, cookie, &status) != 0 || status.state != TOEHOLD_COPY_DONE)
		return 1;
	printf("crc32c %08x\n", status.crc32c);

	/* What cannot be right is refused. */
	if (toehold_copy_copy(channel, target, target + 1, 8, 0, &cookie) != TOEHOLD_COPY_OVERLAP)
		return 1;
	toehold_copy_close(channel);
	toehold_copy_buffer_free(source);
	toehold_copy_buffer_free(target);
	return 0;
}
