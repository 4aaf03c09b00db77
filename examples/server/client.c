/* Talks to `causeway serve --protocol text` from C:
 *     cc -o client client.c && ./client path/to/causeway
 * grad_A = grad_C · Bᵀ of half-precision matrices, as bit patterns of f16: 15360 is 1.0, 16384 is 2.0. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void fail(const char* what) {
    perror(what);
    exit(1);
}

/* The byte count is little-endian, whatever the machine is. */
static void write_frame(FILE* out, const char* text) {
    uint32_t length = (uint32_t)strlen(text);
    unsigned char count[4] = {length & 255, length >> 8 & 255, length >> 16 & 255, length >> 24};
    if (fwrite(count, 1, 4, out) != 4 || fwrite(text, 1, length, out) != length || fflush(out)) fail("write");
}

static char* read_frame(FILE* in) {
    unsigned char count[4];
    if (fread(count, 1, 4, in) != 4) fail("read");
    uint32_t length = count[0] | count[1] << 8 | count[2] << 16 | (uint32_t)count[3] << 24;
    char* text = malloc((size_t)length + 1);
    if (!text || fread(text, 1, length, in) != length) fail("read");
    text[length] = 0;
    return text;
}

int main(int argc, char** argv) {
    int to[2], from[2];
    if (argc < 2) return fprintf(stderr, "usage: %s path/to/causeway\n", argv[0]), 2;
    if (pipe(to) || pipe(from)) fail("pipe");
    pid_t server = fork();
    if (server < 0) fail("fork");
    if (server == 0) {
        dup2(to[0], 0), dup2(from[1], 1);
        close(to[0]), close(to[1]), close(from[0]), close(from[1]);
        execl(argv[1], argv[1], "serve", "--protocol", "text", (char*)NULL);
        fail(argv[1]);
    }
    close(to[0]), close(from[1]);
    FILE *out = fdopen(to[1], "wb"), *in = fdopen(from[0], "rb");
    if (!out || !in) fail("fdopen");

    /* Kernel 1, M = 1, N = 2, K = 1: (1, 2) times the column of (1, 2). */
    write_frame(out, "1 1 2 1\n15360 16384\n15360 16384\n");
    char* reply = read_frame(in);
    fputs(reply, stdout);
    int right = strstr(reply, "RESULTS=17664\n") != NULL; /* 5.0 */
    free(reply);

    fclose(out); /* The end of its input ends the server. */
    int status;
    if (waitpid(server, &status, 0) < 0) fail("waitpid");
    fclose(in);
    return right && status == 0 ? 0 : 1;
}
