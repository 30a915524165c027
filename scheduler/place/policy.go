package place

import (
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/forecast"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/cluster"
	"github.com/nomad-gpu/nomad-gpu/scheduler/place/internal/fit"
)

// policy is what "best" means. Each is a value in a file of its own, which says its
// formula; amounts are in thousandths and describe the node after the placement:
//
//	gpu            (compute/capacity + GPU memory/capacity) / 2 of the pool
//	memory, cpu    allocated/capacity of the host
//	fragmentation  what the placement breaks for later work, as each policy sees it
type policy interface {
	// sign is how utilization counts: 1 where the fullest is best, −1 where the
	// emptiest is.
	sign() int64
	// precision is the estimate of waste that decides.
	precision(p *Planner) *wasteEstimator
	// complete adds to a rough estimate of a placement on a pool what the policy
	// wants to know.
	complete(p *Planner, v *estimate, b *cluster.Pool)
	// prefer ranks a GPU of a pool for a task that takes what it needs of it and leaves
	// the node so much CPU; the least wins.
	prefer(p *Planner, b *cluster.Pool, index int, nd *fit.Need, cpu int64, ws *wasteEstimator) int32
	// score is that of a placement, at the current prices; broken is the room for
	// several GPUs that it takes away, nil where nothing is known.
	score(p *Planner, v *estimate, broken *forecast.PlaceCounts, sh *shape) int32
	// lost is the last term of that score, on a pool, as what the placement takes from later
	// work: in thousandths of a GPU.
	lost(p *Planner, term int64, b *cluster.Pool) int64
}

var policies = [...]policy{PolicyBalanced: balanced{}, PolicyPack: filling{1}, PolicySpread: filling{-1}}
