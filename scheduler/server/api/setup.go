// SPDX-License-Identifier: MPL-2.0

package api

import (
	"math"
	"net/http"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/framework"
)

// SetupRequest is the body of /setup-pytorch and /setup-tensorflow.
type SetupRequest struct {
	// GPUCount is of the whole training; its nodes share it evenly.
	GPUCount int     `json:"gpu_count"`
	GPUType  string  `json:"gpu_type"`
	MemoryGB float64 `json:"memory_gb"`
	// Request is the request grammar, "8G,0.5", in place of the three above.
	Request string `json:"request"`
	// GPUMemoryFraction is the part of the share that the framework may take;
	// MemoryMode conservative, aggressive or dynamic.
	GPUMemoryFraction   float64 `json:"gpu_memory_fraction"`
	MemoryMode          string  `json:"memory_mode"`
	DistributedTraining bool    `json:"distributed_training"`
	MixedPrecision      bool    `json:"mixed_precision"`
	// Nodes is the number of allocations of a distributed training; 0 for as few
	// as share the GPUs evenly, 2 of a part of a GPU each.
	Nodes int `json:"nodes"`
	// ReservationID is claimed by the job fragment.
	ReservationID string `json:"reservation_id"`
}

// SetupAnswer is the environment and the job that uses it.
type SetupAnswer struct {
	Success   bool      `json:"success"`
	Framework string    `json:"framework"`
	GPUConfig GPUConfig `json:"gpu_config"`
	// Environment is what the task gets on admission. Visible devices are not
	// in it: the task driver sets them for the devices that Nomad gave.
	Environment map[string]string `json:"environment"`
	// JobFragment is a task group in HCL.
	JobFragment string   `json:"job_fragment"`
	Notes       []string `json:"notes"`
}

const maxRanks = 1000

func (a *API) setupPyTorch(w http.ResponseWriter, r *http.Request) error {
	return setup(w, r, framework.PyTorch)
}

func (a *API) setupTensorFlow(w http.ResponseWriter, r *http.Request) error {
	return setup(w, r, framework.TensorFlow)
}

func setup(w http.ResponseWriter, r *http.Request, kind framework.Kind) error {
	var body SetupRequest
	if err := read(r, &body); err != nil {
		return err
	}
	reply, err := setupOf(body, kind)
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, reply)
	return nil
}

func setupOf(body SetupRequest, kind framework.Kind) (SetupAnswer, error) {
	request, err := requestOf(body.GPUCount, body.GPUType, body.MemoryGB, body.Request)
	if err != nil {
		return SetupAnswer{}, err
	}
	options, err := optionsOf(body, kind)
	if err != nil {
		return SetupAnswer{}, err
	}
	asked := max(1, request.Count)
	count, err := ranks(body, request)
	if err != nil {
		return SetupAnswer{}, err
	}
	if request.Kind == gpu.KindCount {
		request.Count = asked / count
	}
	share := shareOf(request)
	group := framework.Group{Job: "train", Group: "train", Task: "train", Count: count, Network: "host"}
	plan, err := framework.Plan(options, share, group)
	if err != nil {
		return SetupAnswer{}, problemf(http.StatusBadRequest, "%v", err)
	}
	notes := plan.Notes
	if notes == nil {
		notes = []string{}
	}
	if options.Distributed {
		notes = append(notes, "the ranks find each other through Nomad's service discovery: MASTER_ADDR and MASTER_PORT, or TF_CONFIG, come from a template that admission adds")
	}
	return SetupAnswer{
		Success: true, Framework: string(kind), Environment: plan.Env, Notes: notes,
		GPUConfig: GPUConfig{
			GPUCount: asked, GPUType: request.Model, MemoryGB: memoryOf(body.MemoryGB, request), DistributedTraining: body.DistributedTraining,
		},
		JobFragment: fragment(request, options, group, body.ReservationID),
	}, nil
}

// ranks is how many allocations share the GPUs that were asked for.
func ranks(body SetupRequest, r gpu.Request) (int, error) {
	switch {
	case !body.DistributedTraining:
		return 1, nil
	case r.Kind != gpu.KindCount && body.Nodes == 0:
		return 2, nil
	case r.Kind != gpu.KindCount:
		return body.Nodes, nil
	case body.Nodes > 0 && r.Count%body.Nodes != 0:
		return 0, problemf(http.StatusBadRequest, "%d GPUs on %d nodes: each node gets as many, so write a gpu_count that nodes divides", r.Count, body.Nodes)
	case body.Nodes > 0:
		return body.Nodes, nil
	}
	for n := 2; n <= r.Count; n++ {
		if r.Count%n == 0 {
			return n, nil
		}
	}
	return 1, nil
}

func optionsOf(body SetupRequest, kind framework.Kind) (framework.Options, error) {
	o := framework.Options{
		Kind: kind, Memory: framework.Memory(body.MemoryMode),
		FractionMilli:  int64(math.Round(body.GPUMemoryFraction * gpu.MilliPerGPU)),
		MixedPrecision: body.MixedPrecision, Distributed: body.DistributedTraining,
	}
	if o.Memory == "" {
		o.Memory = framework.Conservative
	}
	switch {
	case !(body.GPUMemoryFraction >= 0 && body.GPUMemoryFraction <= 1) || body.GPUMemoryFraction > 0 && o.FractionMilli == 0:
		return o, problemf(http.StatusBadRequest, "gpu_memory_fraction %v is not from 0.001 to 1", body.GPUMemoryFraction)
	case body.Nodes < 0 || body.Nodes > maxRanks:
		return o, problemf(http.StatusBadRequest, "nodes %d is not from 1 to %d", body.Nodes, maxRanks)
	case body.Nodes > 1 && !body.DistributedTraining:
		return o, problemf(http.StatusBadRequest, "nodes %d needs distributed_training", body.Nodes)
	case !reservationID.MatchString(body.ReservationID):
		return o, problemf(http.StatusBadRequest, "reservation_id %q is not a reservation", body.ReservationID)
	}
	if err := o.Validate(); err != nil {
		return o, problemf(http.StatusBadRequest, "%v", err)
	}
	return o, nil
}

// shareOf is what the request itself promises; the rest is known once a GPU is.
func shareOf(r gpu.Request) framework.Share {
	s := framework.Share{GPUs: max(1, r.Count), Whole: r.Kind == gpu.KindCount, MemoryMiB: r.MemoryMiB}
	if models := r.Models(); len(models) == 1 {
		s.Type = models[0]
	}
	return s
}
