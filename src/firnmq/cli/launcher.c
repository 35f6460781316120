/* The `firn` command: starts Python, unless a node can answer at once.

   Starting Python takes ten times as long as reading a record. So this launcher sends a `firn read`
   to the node that serves the data directory, which parses the arguments and formats the records
   with the code of the command itself (short_answers.py). The launcher knows no option but --data,
   and needs to know that one only to find a node: the node checks it. Whatever is unusual, and
   every error, is left to Python: nothing has been printed by then. */

#include <arpa/inet.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define PATH_BYTES_MAX 4096
#define ANSWER_BYTES_MAX (8 << 20) /* The node sends at most 1 MiB and one more page. */
#define TIMEOUT_S 60               /* As in node.py. */

extern char **environ;

/* With SIGINT and SIGTERM blocked: they wait until Python can say that it stopped (interrupts.py). */
static void run_python(char **argv) {
    sigset_t held;
    sigemptyset(&held);
    sigaddset(&held, SIGINT);
    sigaddset(&held, SIGTERM);
    sigprocmask(SIG_BLOCK, &held, NULL);
    char path[PATH_BYTES_MAX];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - sizeof "-python");
    if (length > 0) {
        strcpy(path + length, "-python");
        execv(path, argv);
    }
    fprintf(stderr, "error: cannot start firn-python beside firn: %s\n", strerror(errno));
    fputs("hint: install FirnMQ again\n", stderr);
    exit(1);
}

/* The --data of the command line; NULL if there is none. */
static const char *typed_directory(char **arguments) {
    const char *found = NULL;
    for (; *arguments != NULL && strcmp(*arguments, "--") != 0; arguments++) {
        if (strncmp(*arguments, "--data=", 7) == 0)
            found = *arguments + 7;
        else if (strcmp(*arguments, "--data") == 0 && arguments[1] != NULL)
            found = *++arguments;
    }
    return found;
}

/* Whether a variable is set that only Python understands, FIRN_NODE for example. */
static int has_other_variables(void) {
    for (char **each = environ; *each != NULL; each++)
        if (strncmp(*each, "FIRN_", 5) == 0 && strncmp(*each, "FIRN_DATA=", 10) != 0) return 1;
    return 0;
}

/* A connection to the node that node.json names, if it has an IPv4 address and needs no token;
   otherwise -1. The host as the file has it is copied to `host`. */
static int connect_to_node(const char *directory, char host[32]) {
    char text[PATH_BYTES_MAX], address[16];
    unsigned short port;
    if (snprintf(text, sizeof text, "%s/node.json", directory) >= (int)sizeof text) return -1;
    FILE *file = fopen(text, "re");
    if (file == NULL) return -1;
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    const char *url = strstr(text, "\"http\": \"http://");
    if (url == NULL || strstr(text, "\"token_file\": null") == NULL) return -1;
    if (sscanf(url, "\"http\": \"http://%15[0-9.]:%hu\"", address, &port) != 2) return -1;
    snprintf(host, 32, "%s:%hu", address, port);
    struct sockaddr_in peer = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct timeval timeout = {.tv_sec = TIMEOUT_S};
    int node = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (inet_pton(AF_INET, address, &peer.sin_addr) != 1 || node < 0 ||
        setsockopt(node, SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) != 0 ||
        setsockopt(node, SOL_SOCKET, SO_SNDTIMEO, &timeout, sizeof timeout) != 0 ||
        connect(node, (struct sockaddr *)&peer, sizeof peer) != 0)
        return -1;
    return node;
}

static char *append_json(char *at, const char *text) {
    *at++ = '"';
    for (; *text != '\0'; text++) {
        if (*text == '"' || *text == '\\' || (unsigned char)*text < 0x20)
            at += sprintf(at, "\\u%04x", (unsigned char)*text);
        else
            *at++ = *text;
    }
    *at++ = '"';
    return at;
}

/* The command line as the JSON document CommandLine of documents.py. */
static char *command_line(char **arguments, const char *typed, const struct stat *directory) {
    size_t size = 512 + (typed == NULL ? 0 : 6 * strlen(typed));
    for (char **each = arguments; *each != NULL; each++) size += 6 * strlen(*each) + 3;
    char *body = malloc(size);
    if (body == NULL) return NULL;
    char *at = body + sprintf(body, "{\"version\":\"%s\",\"device\":%llu,\"inode\":%llu,", VERSION,
                              (unsigned long long)directory->st_dev,
                              (unsigned long long)directory->st_ino);
    at += sprintf(at, "\"is_terminal\":%s,\"data\":", isatty(1) ? "true" : "false");
    at = typed == NULL ? stpcpy(at, "null") : append_json(at, typed);
    at = stpcpy(at, ",\"arguments\":[");
    for (char **each = arguments; *each != NULL; each++) {
        if (each != arguments) *at++ = ',';
        at = append_json(at, *each);
    }
    strcpy(at, "]}");
    return body;
}

/* Everything that the node sends, ended by a zero; NULL if that fails. */
static char *exchange(int node, const char *host, const char *body, size_t *length) {
    if (dprintf(node,
                "POST /v1/command HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\n"
                "Connection: close\r\nContent-Length: %zu\r\n\r\n%s",
                host, strlen(body), body) < 0)
        return NULL;
    size_t size = 64 << 10, used = 0;
    char *answer = malloc(size);
    while (answer != NULL) {
        ssize_t count = read(node, answer + used, size - used - 1);
        if (count < 0) return NULL;
        used += (size_t)count;
        answer[used] = '\0';
        if (count == 0) break;
        if (used + 1 == size) {
            if (size >= ANSWER_BYTES_MAX) return NULL;
            answer = realloc(answer, size *= 2);
        }
    }
    *length = used;
    return answer;
}

/* What the command prints, in an answer that is whole; NULL if the node leaves it to Python. */
static const char *printed_text(const char *answer, size_t length, size_t *text_length) {
    const char *end = strstr(answer, "\r\n\r\n"), *field = strstr(answer, "\r\ncontent-length: ");
    if (strncmp(answer, "HTTP/1.1 200 ", 13) != 0 || end == NULL || field == NULL || field > end)
        return NULL;
    *text_length = strtoul(field + 18, NULL, 10);
    return answer + length == end + 4 + *text_length ? end + 4 : NULL;
}

static volatile sig_atomic_t is_printing = 0;

static void say_stopped(int signal_number) {
    (void)signal_number;
    static const char nothing[] = "\nstopped: 0 records read\n", some[] = "\nstopped\n";
    const char *text = is_printing ? some : nothing;
    if (!isatty(2)) text++; /* On a terminal the line begins a new one, after ^C. */
    (void)!write(2, text, strlen(text));
    _exit(130);
}

static int print(const char *text, size_t length) {
    while (length > 0) {
        ssize_t count = write(1, text, length);
        if (count < 0) {
            if (errno == EPIPE) return 141; /* PIPE_CLOSED of reports.py. */
            fprintf(stderr, "error: standard output: %s\n", strerror(errno));
            return 1;
        }
        text += count;
        length -= (size_t)count;
    }
    return 0;
}

int main(int argc, char **argv) {
    struct stat directory;
    char host[32];
    size_t length, text_length;
    if (argc < 3 || strcmp(argv[1], "read") != 0 || has_other_variables()) run_python(argv);
    const char *typed = typed_directory(argv + 2), *variable = getenv("FIRN_DATA");
    const char *path = typed != NULL ? typed : variable != NULL ? variable : "firn-data";
    if (stat(path, &directory) != 0) run_python(argv);
    if (signal(SIGINT, say_stopped) == SIG_IGN) signal(SIGINT, SIG_IGN);
    int node = connect_to_node(path, host);
    char *body = node < 0 ? NULL : command_line(argv + 2, typed, &directory);
    char *answer = body == NULL ? NULL : exchange(node, host, body, &length);
    const char *text = answer == NULL ? NULL : printed_text(answer, length, &text_length);
    if (text == NULL) run_python(argv);
    is_printing = 1;
    signal(SIGPIPE, SIG_IGN);
    return print(text, text_length);
}
