// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Kubernetes is what was read of a cluster's pods.
type Kubernetes struct {
	Tasks []Task
	// Gangs is how many groups of pods start together. NeverRan pods were left out, and Running
	// ones run until the latest time that the file names.
	Gangs, NeverRan, Running int
}

// pod is the part of a pod that is needed.
type pod struct {
	Metadata struct {
		Name, Namespace     string
		CreationTimestamp   time.Time
		Labels, Annotations map[string]string
	}
	Spec struct {
		Containers            []podContainer
		ActiveDeadlineSeconds float64
		NodeSelector          map[string]string
	}
	Status struct {
		ContainerStatuses []struct {
			State struct {
				Running    *struct{ StartedAt time.Time }
				Terminated *struct{ StartedAt, FinishedAt time.Time }
			}
		}
	}
}

type podContainer struct {
	Resources struct{ Requests, Limits map[string]string }
}

// podModels are the labels of nodes by which pods choose a model of GPU.
var podModels = []string{"nvidia.com/gpu.product", "cloud.google.com/gke-accelerator", "amd.com/gpu.product-name"}

// ReadKubernetes reads what kubectl get pods -A -o json writes: a namespace becomes a queue, a pod
// group of the coscheduling plugin or of Volcano a gang. The first pod is created at second 0.
func ReadKubernetes(r io.Reader) (Kubernetes, error) {
	var list struct{ Items []pod }
	if err := json.NewDecoder(r).Decode(&list); err != nil {
		return Kubernetes{}, fmt.Errorf("%w: %w", ErrTrace, err)
	}
	var k Kubernetes
	var latest time.Time
	for i := range list.Items {
		p := &list.Items[i]
		latest = later(latest, p.Metadata.CreationTimestamp)
		for _, s := range p.Status.ContainerStatuses {
			if s.State.Running != nil {
				latest = later(latest, s.State.Running.StartedAt)
			}
			if s.State.Terminated != nil {
				latest = later(latest, s.State.Terminated.FinishedAt)
			}
		}
	}
	var created []time.Time
	gangs := map[string]bool{}
	for i := range list.Items {
		p := &list.Items[i]
		start, end, runs := p.ran()
		if start.IsZero() {
			k.NeverRan++
			continue
		}
		if runs {
			k.Running++
			end = latest
		}
		t, err := p.task()
		if err != nil {
			return Kubernetes{}, fmt.Errorf("%w: pod %s/%s: %w", ErrTrace, p.Metadata.Namespace, p.Metadata.Name, err)
		}
		if t.Gang != "" {
			gangs[t.Gang] = true
		}
		t.RunSeconds = end.Sub(start).Seconds()
		k.Tasks, created = append(k.Tasks, t), append(created, p.Metadata.CreationTimestamp)
	}
	if len(k.Tasks) == 0 {
		return Kubernetes{}, fmt.Errorf("%w: none of %d pods ran", ErrTrace, k.NeverRan)
	}
	k.Gangs = len(gangs)
	first := slices.MinFunc(created, time.Time.Compare)
	for i := range k.Tasks {
		k.Tasks[i].ArriveSecond = created[i].Sub(first).Seconds()
	}
	slices.SortStableFunc(k.Tasks, func(a, b Task) int { return cmp.Compare(a.ArriveSecond, b.ArriveSecond) })
	return k, nil
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// ran is when the first container started and the last ended, and whether one still runs.
func (p *pod) ran() (start, end time.Time, runs bool) {
	begin := func(at time.Time) {
		if start.IsZero() || at.Before(start) {
			start = at
		}
	}
	for _, s := range p.Status.ContainerStatuses {
		if s.State.Running != nil {
			begin(s.State.Running.StartedAt)
			runs = true
		}
		if s.State.Terminated != nil {
			begin(s.State.Terminated.StartedAt)
			end = later(end, s.State.Terminated.FinishedAt)
		}
	}
	return start, end, runs
}

// task is what a pod asks for: the sum of its containers. A limit stands for a request that is not there,
// as in Kubernetes.
func (p *pod) task() (Task, error) {
	m := &p.Metadata
	t := Task{
		Name: m.Namespace + "/" + m.Name, Queue: m.Namespace, LimitSeconds: p.Spec.ActiveDeadlineSeconds,
		Gang: cmp.Or(m.Labels["scheduling.x-k8s.io/pod-group"], m.Annotations["scheduling.k8s.io/group-name"]),
	}
	if t.Gang != "" {
		t.Gang = m.Namespace + "/" + t.Gang
	}
	var cpu, memory, gpus float64
	for _, c := range p.Spec.Containers {
		for name, text := range c.Resources.Limits {
			if c.Resources.Requests[name] == "" {
				if c.Resources.Requests == nil {
					c.Resources.Requests = map[string]string{}
				}
				c.Resources.Requests[name] = text
			}
		}
		for name, text := range c.Resources.Requests {
			amount, err := quantity(text)
			if err != nil {
				return t, fmt.Errorf("%s: %w", name, err)
			}
			switch {
			case name == "cpu":
				cpu += amount
			case name == "memory":
				memory += amount
			case strings.HasSuffix(name, "/gpu"):
				gpus += amount
			}
		}
	}
	if gpus > maxGPUs {
		return t, fmt.Errorf("%g GPUs, at most %d are possible", gpus, maxGPUs)
	}
	t.CPUMilli, t.MemoryMiB = int64(cpu*1000+0.5), int64((memory+1<<20-1)/(1<<20))
	if t.GPUs = int(gpus); t.GPUs > 0 {
		t.GPUMilli = gpuMilli
		for _, label := range podModels {
			if model := p.Spec.NodeSelector[label]; model != "" {
				t.Models = []string{model}
			}
		}
	}
	return t, nil
}

// quantity reads an amount as Kubernetes writes it: 500m, 2, 1.5G, 64Gi, 1e3.
func quantity(text string) (float64, error) {
	number, unit := text, 1.0
	if at := len(strings.TrimRight(text, "numkKMGTPEi")); at < len(text) {
		units := map[string]float64{
			"n": 1e-9, "u": 1e-6, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
			"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40, "Pi": 1 << 50, "Ei": 1 << 60,
		}
		number, unit = text[:at], units[text[at:]]
	}
	v, err := strconv.ParseFloat(number, 64)
	if err != nil || unit == 0 || v < 0 || v*unit > 1<<60 {
		return 0, fmt.Errorf("%q is not valid (an amount such as 2, 500m or 64Gi)", text)
	}
	return v * unit, nil
}
