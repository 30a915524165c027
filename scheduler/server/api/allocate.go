// SPDX-License-Identifier: MPL-2.0

package api

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"

	"github.com/nomad-gpu/nomad-gpu/internal/gpu"
	"github.com/nomad-gpu/nomad-gpu/scheduler/admit"
	"github.com/nomad-gpu/nomad-gpu/scheduler/nomad"
	"github.com/nomad-gpu/nomad-gpu/scheduler/reserve"
	"github.com/nomad-gpu/nomad-gpu/scheduler/view"
)

// Bounds of requests.
const (
	maxMemoryGB = 100_000
	maxOwner    = 100
)

// Want is the body of /validate.
type Want struct {
	GPUCount int     `json:"gpu_count"`
	GPUType  string  `json:"gpu_type"`
	MemoryGB float64 `json:"memory_gb"`
	// Request is the request grammar, "8G,0.5", in place of the three above.
	Request             string `json:"request"`
	DistributedTraining bool   `json:"distributed_training"`
	MixedPrecision      bool   `json:"mixed_precision"`
	Namespace           string `json:"namespace"`
	Queue               string `json:"queue"`
}

// AllocateRequest is the body of /allocate.
type AllocateRequest struct {
	GPUCount            int     `json:"gpu_count"`
	GPUType             string  `json:"gpu_type"`
	MemoryGB            float64 `json:"memory_gb"`
	Request             string  `json:"request"`
	DistributedTraining bool    `json:"distributed_training"`
	MixedPrecision      bool    `json:"mixed_precision"`
	Namespace           string  `json:"namespace"`
	Queue               string  `json:"queue"`
	// Owner tells people whose reservation it is; TTLSeconds is how long it is
	// held, 0 for ten minutes.
	Owner      string `json:"owner"`
	TTLSeconds int64  `json:"ttl_seconds"`
}

// GPUConfig is the request, as it was understood.
type GPUConfig struct {
	GPUCount            int    `json:"gpu_count"`
	GPUType             string `json:"gpu_type"`
	MemoryGB            gb     `json:"memory_gb"`
	DistributedTraining bool   `json:"distributed_training"`
}

// Allocation is the answer of /allocate.
type Allocation struct {
	Success       bool      `json:"success"`
	NodeName      string    `json:"node_name"`
	GPUConfig     GPUConfig `json:"gpu_config"`
	ReservationID string    `json:"reservation_id"`
	ExpiresAt     time.Time `json:"expires_at"`
}

// Validation is the answer of /validate.
type Validation struct {
	Valid bool `json:"valid"`
	// NodeName is where it would go now; empty when it is not valid.
	NodeName string `json:"node_name,omitempty"`
	// Reason and Details say why it is not; WouldFit is what there would be room for now.
	Reason   string     `json:"reason,omitempty"`
	Details  []string   `json:"details,omitempty"`
	WouldFit *view.Fits `json:"would_fit,omitempty"`
}

// Reservation is one held reservation.
type Reservation struct {
	ReservationID string    `json:"reservation_id"`
	Namespace     string    `json:"namespace"`
	Queue         string    `json:"queue,omitempty"`
	Owner         string    `json:"owner,omitempty"`
	NodeName      string    `json:"node_name"`
	GPUs          []string  `json:"gpus"`
	MemoryGB      gb        `json:"memory_gb"`
	ExpiresAt     time.Time `json:"expires_at"`
	ClaimedBy     string    `json:"claimed_by,omitempty"`
}

func (a *API) validate(w http.ResponseWriter, r *http.Request) error {
	var body Want
	if err := read(r, &body); err != nil {
		return err
	}
	want, err := a.want(AllocateRequest{
		GPUCount: body.GPUCount, GPUType: body.GPUType, MemoryGB: body.MemoryGB, Request: body.Request,
		DistributedTraining: body.DistributedTraining, MixedPrecision: body.MixedPrecision, Namespace: body.Namespace, Queue: body.Queue,
	})
	if err != nil {
		return err
	}
	if err := a.Gate.MayReadNamespace(r.Context(), nomad.CallerToken(r.Header), want.Namespace); err != nil {
		return err
	}
	hold, err := a.Keeper.Reserve(r.Context(), want, true)
	var refusal *admit.Refusal
	switch {
	case errors.As(err, &refusal):
		answer(w, http.StatusOK, Validation{Reason: refusal.Text, Details: refusal.Details, WouldFit: wouldFit(err)})
	case err != nil:
		return err
	default:
		answer(w, http.StatusOK, Validation{Valid: true, NodeName: hold.NodeName})
	}
	return nil
}

func (a *API) allocate(w http.ResponseWriter, r *http.Request) error {
	var body AllocateRequest
	if err := read(r, &body); err != nil {
		return err
	}
	want, err := a.want(body)
	if err != nil {
		return err
	}
	hold, err := a.reserve(r, want)
	a.audit(r, Audited{Action: "reserve", Namespace: want.Namespace, Queue: want.Queue, Ask: want.Request.String(), Node: hold.NodeName, Reservation: hold.ID}, err)
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, Allocation{
		Success: true, NodeName: hold.NodeName, ReservationID: hold.ID, ExpiresAt: hold.ExpiresAt.UTC(),
		GPUConfig: a.configOf(body, want.Request, hold),
	})
	return nil
}

// configOf is the request. Fields that the caller left open are told as they are.
func (a *API) configOf(body AllocateRequest, r gpu.Request, h view.Hold) GPUConfig {
	c := GPUConfig{GPUCount: max(1, r.Count), GPUType: r.Model, MemoryGB: memoryOf(body.MemoryGB, r), DistributedTraining: body.DistributedTraining}
	cluster, err := a.Views.View()
	if err != nil || len(h.GPUs) == 0 {
		return c
	}
	for i := range cluster.Nodes {
		for k := range cluster.Nodes[i].GPUs {
			g := &cluster.Nodes[i].GPUs[k]
			if g.UUID != h.GPUs[0] {
				continue
			}
			if len(r.Models()) != 1 {
				c.GPUType = g.Type
			}
			if c.MemoryGB == 0 && r.Kind == gpu.KindCount {
				c.MemoryGB = a.nominalGB(g)
			}
		}
	}
	return c
}

func (a *API) reserve(r *http.Request, w reserve.Want) (view.Hold, error) {
	if err := a.Gate.MaySubmit(r.Context(), nomad.CallerToken(r.Header), w.Namespace); err != nil {
		return view.Hold{}, err
	}
	return a.Keeper.Reserve(r.Context(), w, false)
}

// Audited is the decision about a reservation.
type Audited struct {
	Action string // reserve or release
	Status int
	// Namespace, Queue and Ask are the request; Node and Reservation are
	// empty when it was refused, and Reason is why.
	Namespace, Queue, Ask, Node, Reservation, Reason string
}

func (a *API) audit(r *http.Request, e Audited, err error) {
	if a.Audit == nil {
		return
	}
	e.Status = http.StatusOK
	if err != nil {
		p := describe(err)
		e.Status, e.Reason = p.status, p.text
	}
	a.Audit(r, nomad.CallerToken(r.Header), e)
}

// memoryOf is the memory per GPU that was asked for.
func memoryOf(asked float64, r gpu.Request) gb {
	if r.MemoryMiB > 0 {
		return gb(math.Round(float64(r.MemoryMiB)/102.4) / 10)
	}
	return gb(asked)
}

// want checks a body and says it in the words of the core. It needs a picture:
// the size that people write is a card's nominal one, and only what the
// hardware reports says which cards are meant.
func (a *API) want(body AllocateRequest) (reserve.Want, error) {
	request, err := requestOf(body.GPUCount, body.GPUType, body.MemoryGB, body.Request)
	if err != nil {
		return reserve.Want{}, err
	}
	hold := time.Duration(body.TTLSeconds) * time.Second
	switch {
	case body.TTLSeconds < 0 || body.TTLSeconds > int64(a.LongestHold/time.Second):
		return reserve.Want{}, problemf(http.StatusBadRequest, "ttl_seconds %d is not from 1 to %d", body.TTLSeconds, int64(a.LongestHold/time.Second))
	case hold == 0:
		hold = a.DefaultHold
	}
	if len(body.Owner) > maxOwner || strings.ContainsFunc(body.Owner, func(c rune) bool { return c < ' ' }) {
		return reserve.Want{}, problemf(http.StatusBadRequest, "owner %q is longer than %d bytes or has control characters", body.Owner, maxOwner)
	}
	c, err := a.Views.View()
	if err != nil {
		return reserve.Want{}, blind(err)
	}
	w := reserve.Want{
		Namespace: body.Namespace, Queue: body.Queue, Owner: body.Owner, For: hold,
		Request: request, Close: body.DistributedTraining && request.Count > 1,
	}
	if w.Namespace == "" {
		w.Namespace = "default"
	}
	w.MinMemoryMiB = a.smallest(c, request, body.MemoryGB)
	return w, nil
}

// requestOf reads what a body asks for: either a request in the grammar, or a
// number of whole GPUs, their type and their size.
func requestOf(count int, gpuType string, memoryGB float64, text string) (gpu.Request, error) {
	switch {
	case text != "" && (count != 0 || gpuType != "" || memoryGB != 0):
		return gpu.Request{}, problemf(http.StatusBadRequest, "request stands in place of gpu_count, gpu_type and memory_gb; leave them out")
	case text == "" && count < 1:
		return gpu.Request{}, problemf(http.StatusBadRequest, "gpu_count %d is not a whole number from 1; a part of a GPU is asked for with request, such as \"8G,0.5\"", count)
	case !(memoryGB >= 0 && memoryGB < maxMemoryGB):
		return gpu.Request{}, problemf(http.StatusBadRequest, "memory_gb %v is not a number from 0 to %d", memoryGB, maxMemoryGB)
	}
	if text == "" {
		text = fmt.Sprint(count)
		if gpuType != "" {
			text += "(" + gpuType + ")"
		}
	}
	request, err := gpu.ParseRequest(text)
	if err != nil {
		return gpu.Request{}, problemf(http.StatusBadRequest, "%v", err)
	}
	return request, nil
}

// smallest is the reported memory of the smallest GPU whose nominal size is at
// least the request. When there is none it is the size itself, which the
// core then refuses with its reasons.
func (a *API) smallest(c *view.Cluster, r gpu.Request, memoryGB float64) int64 {
	if memoryGB == 0 {
		return 0
	}
	least := int64(0)
	for i := range c.Nodes {
		for k := range c.Nodes[i].GPUs {
			g := &c.Nodes[i].GPUs[k]
			if (filter{r.Models(), r.Excluded(), memoryGB}).matches(a, g) && (least == 0 || g.MemoryMiB < least) {
				least = g.MemoryMiB
			}
		}
	}
	if least == 0 {
		return int64(math.Ceil(memoryGB * 1024))
	}
	return min(least, int64(math.Ceil(memoryGB*1024)))
}

func (a *API) reservations(w http.ResponseWriter, r *http.Request) error {
	if err := onlyQuery(r); err != nil {
		return err
	}
	if _, err := a.Heard(); err != nil {
		return blind(err)
	}
	list := struct {
		Reservations []Reservation `json:"reservations"`
	}{[]Reservation{}}
	for _, h := range a.Keeper.All() {
		visible, err := a.visible(r, h.Namespace)
		if err != nil {
			return err
		}
		if visible {
			list.Reservations = append(list.Reservations, reservationOf(h))
		}
	}
	answer(w, http.StatusOK, list)
	return nil
}

func (a *API) reservation(w http.ResponseWriter, r *http.Request) error {
	h, err := a.holdOf(r)
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, reservationOf(h))
	return nil
}

func (a *API) release(w http.ResponseWriter, r *http.Request) error {
	h, err := a.holdOf(r)
	if err != nil {
		return err
	}
	if err = a.Gate.MaySubmit(r.Context(), nomad.CallerToken(r.Header), h.Namespace); err == nil {
		err = a.Keeper.Release(r.Context(), h.ID)
	}
	a.audit(r, Audited{Action: "release", Namespace: h.Namespace, Queue: h.Queue, Node: h.NodeName, Reservation: h.ID}, err)
	if err != nil {
		return err
	}
	answer(w, http.StatusOK, struct {
		Success       bool   `json:"success"`
		ReservationID string `json:"reservation_id"`
	}{true, h.ID})
	return nil
}

// holdOf finds a hold that the caller may see; another one does not exist for
// the caller. The picture is too old to be asked: it may not show yet what the
// caller was given a moment ago.
func (a *API) holdOf(r *http.Request) (view.Hold, error) {
	if _, err := a.Heard(); err != nil {
		return view.Hold{}, blind(err)
	}
	id := r.PathValue("id")
	h, err := a.Keeper.Held(id)
	if err == nil {
		err = a.Gate.MayReadNamespace(r.Context(), nomad.CallerToken(r.Header), h.Namespace)
	}
	if errors.Is(err, reserve.ErrNotFound) || errors.Is(err, ErrDenied) || errors.Is(err, ErrNoNamespace) {
		err = fmt.Errorf("reservation %q: %w; it was released, has expired or belongs to a namespace that the token may not read", id, reserve.ErrNotFound)
	}
	return h, err
}

func reservationOf(h view.Hold) Reservation {
	gpus := h.GPUs
	if gpus == nil {
		gpus = []string{}
	}
	return Reservation{
		ReservationID: h.ID, Namespace: h.Namespace, Queue: h.Queue, Owner: h.Owner, NodeName: h.NodeName, GPUs: gpus,
		MemoryGB: gb(math.Round(float64(h.MemoryMiB)/102.4) / 10), ExpiresAt: h.ExpiresAt.UTC(), ClaimedBy: h.ClaimedBy,
	}
}
