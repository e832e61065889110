/* Reads a llama2.c checkpoint (version 0) by its layout alone and writes the logits of every position, as raw floats.
 * For tests: forward FILE TOKEN... Angles are computed, as today's run.c does; the tables in the file are skipped.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const float *at; /* the next number in the file */

static const float *take(size_t count) {
    const float *start = at;
    at += count;
    return start;
}

static void norm(float *y, const float *x, const float *weight, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)x[i] * x[i];
    const float scale = (float)(1 / sqrt(sum / n + 1e-5));
    for (int i = 0; i < n; i++) y[i] = x[i] * scale * weight[i];
}

static void product(float *y, const float *weight, const float *x, int rows, int columns) {
    for (int r = 0; r < rows; r++) {
        float sum = 0;
        for (int c = 0; c < columns; c++) sum += weight[(size_t)r * columns + c] * x[c];
        y[r] = sum;
    }
}

static void turn(float *x, int heads, int d, int position) {
    for (int h = 0; h < heads; h++)
        for (int i = 0; i < d; i += 2) {
            const double angle = position * pow(10000.0, -(double)i / d);
            const float c = (float)cos(angle), s = (float)sin(angle);
            float *pair = x + h * d + i;
            const float a = pair[0], b = pair[1];
            pair[0] = a * c - b * s;
            pair[1] = a * s + b * c;
        }
}

int main(int argc, char **argv) {
    FILE *file = fopen(argv[1], "rb");
    fseek(file, 0, SEEK_END);
    const long size = ftell(file);
    rewind(file);
    char *data = malloc(size);
    if (fread(data, 1, size, file) != (size_t)size) return 1;
    fclose(file);
    int32_t header[7];
    memcpy(header, data, sizeof header);
    const int width = header[0], hidden = header[1], layers = header[2], heads = header[3], kv_heads = header[4];
    const int tied = header[5] > 0, vocabulary = abs(header[5]), context = header[6];
    const int d = width / heads, kv_width = kv_heads * d;
    at = (const float *)(data + sizeof header);
    const float *embedding = take((size_t)vocabulary * width), *attention_norm = take((size_t)layers * width);
    const float *query = take((size_t)layers * width * width), *key = take((size_t)layers * kv_width * width);
    const float *value = take((size_t)layers * kv_width * width), *output = take((size_t)layers * width * width);
    const float *mlp_norm = take((size_t)layers * width), *gate = take((size_t)layers * hidden * width);
    const float *down = take((size_t)layers * width * hidden), *up = take((size_t)layers * hidden * width);
    const float *last_norm = take(width);
    take((size_t)context * d); /* cos and sin, d / 2 of each */
    const float *head = tied ? embedding : take((size_t)vocabulary * width);
    if ((const char *)at != data + size) return 2;

    const int count = argc - 2;
    float *keys = calloc((size_t)layers * count * kv_width, sizeof(float));
    float *values = calloc((size_t)layers * count * kv_width, sizeof(float));
    float *x = calloc(width, sizeof(float)), *y = calloc(width, sizeof(float)), *q = calloc(width, sizeof(float));
    float *mixed = calloc(width, sizeof(float)), *scores = calloc(count, sizeof(float));
    float *g = calloc(hidden, sizeof(float)), *u = calloc(hidden, sizeof(float));
    float *logits = calloc(vocabulary, sizeof(float));
    for (int p = 0; p < count; p++) {
        memcpy(x, embedding + (size_t)atoi(argv[p + 2]) * width, width * sizeof(float));
        for (int l = 0; l < layers; l++) {
            float *layer_keys = keys + (size_t)l * count * kv_width, *layer_values = values + (size_t)l * count * kv_width;
            norm(y, x, attention_norm + l * width, width);
            product(q, query + (size_t)l * width * width, y, width, width);
            product(layer_keys + p * kv_width, key + (size_t)l * kv_width * width, y, kv_width, width);
            product(layer_values + p * kv_width, value + (size_t)l * kv_width * width, y, kv_width, width);
            turn(q, heads, d, p);
            turn(layer_keys + p * kv_width, kv_heads, d, p);
            memset(mixed, 0, width * sizeof(float));
            for (int h = 0; h < heads; h++) {
                const int offset = h / (heads / kv_heads) * d;
                float sum = 0, highest = -INFINITY;
                for (int t = 0; t <= p; t++) {
                    scores[t] = 0;
                    for (int i = 0; i < d; i++) scores[t] += q[h * d + i] * layer_keys[t * kv_width + offset + i];
                    scores[t] /= sqrtf(d);
                    highest = fmaxf(highest, scores[t]);
                }
                for (int t = 0; t <= p; t++) sum += scores[t] = expf(scores[t] - highest);
                for (int t = 0; t <= p; t++)
                    for (int i = 0; i < d; i++)
                        mixed[h * d + i] += scores[t] / sum * layer_values[t * kv_width + offset + i];
            }
            product(y, output + (size_t)l * width * width, mixed, width, width);
            for (int i = 0; i < width; i++) x[i] += y[i];
            norm(y, x, mlp_norm + l * width, width);
            product(g, gate + (size_t)l * hidden * width, y, hidden, width);
            product(u, up + (size_t)l * hidden * width, y, hidden, width);
            for (int i = 0; i < hidden; i++) g[i] = g[i] / (1 + expf(-g[i])) * u[i];
            product(y, down + (size_t)l * width * hidden, g, width, hidden);
            for (int i = 0; i < width; i++) x[i] += y[i];
        }
        norm(y, x, last_norm, width);
        product(logits, head, y, vocabulary, width);
        fwrite(logits, sizeof(float), vocabulary, stdout);
    }
    return 0;
}
