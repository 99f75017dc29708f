// A GPU process that computes a result to check, holds its memory for a while, and prints its PID.
#include <cstdio>
#include <cstdlib>
#include <unistd.h>
#include <vector>

__global__ void saxpy(int n, float a, const float *x, float *y)
{
	int i = blockIdx.x * blockDim.x + threadIdx.x;

	if (i < n)
		y[i] = a * x[i] + y[i];
}

static void must(cudaError_t status, const char *what)
{
	if (status == cudaSuccess)
		return;
	fprintf(stderr, "saxpy: %s: %s\n", what, cudaGetErrorString(status));
	exit(1);
}

int main(int argc, char **argv)
{
	const int n = 1 << 22;
	std::vector<float> x(n), y(n);
	float *gx, *gy;
	int wrong = 0;

	for (int i = 0; i < n; i++) {
		x[i] = i % 1000;
		y[i] = 1;
	}
	must(cudaMalloc(&gx, n * sizeof(float)), "cudaMalloc");
	must(cudaMalloc(&gy, n * sizeof(float)), "cudaMalloc");
	must(cudaMemcpy(gx, x.data(), n * sizeof(float), cudaMemcpyHostToDevice), "copy to the GPU");
	must(cudaMemcpy(gy, y.data(), n * sizeof(float), cudaMemcpyHostToDevice), "copy to the GPU");
	saxpy<<<(n + 255) / 256, 256>>>(n, 2, gx, gy);
	must(cudaMemcpy(y.data(), gy, n * sizeof(float), cudaMemcpyDeviceToHost), "copy from the GPU");
	for (int i = 0; i < n; i++)
		wrong += y[i] != 2 * (i % 1000) + 1;
	printf("saxpy: process %d, %d numbers, %d wrong\n", getpid(), n, wrong);
	fflush(stdout);
	sleep(argc > 1 ? atoi(argv[1]) : 0);
	return wrong != 0;
}
