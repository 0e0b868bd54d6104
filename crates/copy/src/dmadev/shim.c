/* The part of DPDK's dmadev that is inline functions in a header, behind plain ones. */

#define ALLOW_EXPERIMENTAL_API
#include <rte_dmadev.h>
#include <rte_eal.h>

struct toehold_dmadev_info {
	uint64_t capabilities;
	uint16_t entries_min;
	uint16_t entries_max;
	char name[64];
};

int toehold_dmadev_init(int argc, char **argv)
{
	return rte_eal_init(argc, argv);
}

/* The first device at or after `from`, or -1. */
int toehold_dmadev_next(int16_t from)
{
	return rte_dma_next_dev(from);
}

int toehold_dmadev_info(int16_t device, struct toehold_dmadev_info *out)
{
	struct rte_dma_info info;
	int error = rte_dma_info_get(device, &info);

	if (error)
		return error;
	out->capabilities = info.dev_capa;
	out->entries_min = info.min_desc;
	out->entries_max = info.max_desc;
	snprintf(out->name, sizeof(out->name), "%s", info.dev_name);
	return 0;
}

int toehold_dmadev_start(int16_t device, uint16_t entries)
{
	struct rte_dma_conf conf = { .nb_vchans = 1 };
	struct rte_dma_vchan_conf vchan = {
		.direction = RTE_DMA_DIR_MEM_TO_MEM,
		.nb_desc = entries,
	};
	int error = rte_dma_configure(device, &conf);

	if (!error)
		error = rte_dma_vchan_setup(device, 0, &vchan);
	if (!error)
		error = rte_dma_start(device);
	return error;
}

int toehold_dmadev_stop(int16_t device)
{
	return rte_dma_stop(device);
}

int toehold_dmadev_copy(int16_t device, const void *source, void *target, uint32_t len, int cache)
{
	return rte_dma_copy(device, 0, (rte_iova_t)(uintptr_t)source, (rte_iova_t)(uintptr_t)target,
			    len, cache ? RTE_DMA_OP_FLAG_LLC : 0);
}

int toehold_dmadev_fill(int16_t device, void *target, uint32_t len, uint64_t pattern, int cache)
{
	return rte_dma_fill(device, 0, pattern, (rte_iova_t)(uintptr_t)target, len,
			    cache ? RTE_DMA_OP_FLAG_LLC : 0);
}

int toehold_dmadev_submit(int16_t device)
{
	return rte_dma_submit(device, 0);
}

/* Up to `max` completions, oldest first: zero for those that went well. */
uint16_t toehold_dmadev_completed(int16_t device, uint16_t max, int *status)
{
	enum rte_dma_status_code codes[64];
	uint16_t last, n, i;

	if (max > 64)
		max = 64;
	n = rte_dma_completed_status(device, 0, max, &last, codes);
	for (i = 0; i < n; i++)
		status[i] = codes[i] == RTE_DMA_STATUS_SUCCESSFUL ? 0 : 1;
	return n;
}
