// SPDX-License-Identifier: MPL-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/nomad/api"
	"github.com/opencontainers/go-digest"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// stallingRegistry answers a request for a manifest of "layer" with an image, and all
// others never.
type stallingRegistry struct {
	*httptest.Server
	mu    sync.Mutex
	waits map[string]int // requests that got no answer, by repository
}

func newStallingRegistry(t *testing.T) *stallingRegistry {
	t.Helper()
	r := &stallingRegistry{waits: map[string]int{}}
	config := `{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":["sha256:` + strings.Repeat("a", 64) + `"]}}`
	manifest := fmt.Sprintf(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",
		"config":{"mediaType":"application/vnd.oci.image.config.v1+json","digest":%q,"size":%d},
		"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar+gzip","digest":"sha256:%s","size":1000}]}`,
		digest.FromString(config), len(config), strings.Repeat("b", 64))
	r.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		switch repository, rest, _ := strings.Cut(strings.TrimPrefix(req.URL.Path, "/v2/"), "/"); {
		case repository == "layer" && strings.HasPrefix(rest, "manifests/"):
			w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
			w.Header().Set("Docker-Content-Digest", digest.FromString(manifest).String())
			w.Header().Set("Content-Length", fmt.Sprint(len(manifest)))
			_, _ = io.WriteString(w, manifest)
		case repository == "layer" && strings.HasSuffix(rest, digest.FromString(config).String()):
			_, _ = io.WriteString(w, config)
		default:
			r.mu.Lock()
			r.waits[repository]++
			r.mu.Unlock()
			<-req.Context().Done()
		}
	}))
	t.Cleanup(func() { r.CloseClientConnections(); r.Close() })
	return r
}

func (r *stallingRegistry) waiting(repository string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waits[repository]
}

// startsWait is where a start can wait for what may never come.
type startsWait struct {
	jobSpec
	image string
	// reached is how often a start of the job has come there.
	reached func(*api.Allocation) int
}

// told counts the events of a task that say something.
func told(says string) func(*api.Allocation) int {
	return func(a *api.Allocation) int {
		count := 0
		for _, event := range a.TaskStates["task"].Events {
			if strings.Contains(event.DisplayMessage, says) {
				count++
			}
		}
		return count
	}
}

// A start ends wherever it waits, when its job is stopped, purged or drained, also when the
// driver dies meanwhile and Nomad asks for the start again. Nomad itself calls nothing
// of the driver's for that. Meanwhile other tasks start.
func TestStartsEndWhenNobodyWantsThem(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, cluster.NodeOptions{Topology: h100(t, 1), GPUs: seats, Driver: "max_starts = 4\n"})
	node, registry := c.Nodes[0], newStallingRegistry(t)
	startSitter(t, ctx, c, "sitter", 80, 70<<10)
	at := strings.TrimPrefix(registry.URL, "http://")
	from := func(repository string) func(*api.Allocation) int {
		return func(*api.Allocation) int { return registry.waiting(repository) }
	}
	waits := map[string]startsWait{
		"manifest": {jobSpec: jobSpec{devices: oneSeat, config: `image_pull_timeout = "10m"`}, image: at + "/manifest/box:1", reached: from("manifest")},
		"layer":    {image: at + "/layer/box:1", reached: from("layer")},
		"join":     {jobSpec: jobSpec{config: `network_mode = "task:nobody"`}, reached: told("waits for task")},
		"seat":     {jobSpec: jobSpec{devices: oneSeat, config: "gpu {\n memory = \"70GiB\"\n priority = \"10\"\n}"}, reached: told("waits for a seat")},
	}
	// await waits until each start has come to where it waits, after it has been there before.
	await := func(id string, w startsWait, before int) string {
		t.Helper()
		for {
			stubs, _, err := c.API.Jobs().Allocations(id, false, (&api.QueryOptions{}).WithContext(ctx))
			if err != nil {
				t.Fatal(err)
			}
			if len(stubs) > 0 {
				alloc, err := c.Alloc(ctx, stubs[0].ID)
				if err != nil {
					t.Fatal(err)
				}
				if alloc.ClientTerminalStatus() {
					t.Fatalf("%s has ended: %+v", id, alloc.TaskStates["task"])
				}
				if alloc.TaskStates["task"] != nil && w.reached(alloc) > before {
					return alloc.ID
				}
			}
			pauseIn(t, ctx)
		}
	}
	deregister := func(purge bool) func(ids []string) {
		return func(ids []string) {
			for _, id := range ids {
				if _, _, err := c.API.Jobs().Deregister(id, purge, (&api.WriteOptions{}).WithContext(ctx)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	drain := func(spec *api.DrainSpec) {
		if _, err := c.API.Nodes().UpdateDrain(node.ID, spec, true, (&api.WriteOptions{}).WithContext(ctx)); err != nil {
			t.Fatal(err)
		}
	}
	kill := func() {
		t.Helper()
		if err := restarted(ctx, node, node.KillDriverPlugin, "nomad-driver-containerd"); err != nil {
			t.Fatal(err)
		}
	}
	restartClient := func() {
		t.Helper()
		if err := errors.Join(node.KillClient(), node.StartClient(ctx)); err != nil {
			t.Fatal(err)
		}
	}
	round := 0
	for _, way := range []struct {
		name   string
		again  func() // after which the starts are asked for once more
		purged bool
		do     func(ids []string)
		undo   func()
	}{
		{name: "stop", do: deregister(false)},
		{name: "purge, and the driver dies", purged: true, do: func(ids []string) { deregister(true)(ids); kill() }},
		{name: "stop after the driver died", again: kill, do: deregister(false)},
		{name: "stop after the client died", again: restartClient, do: deregister(false)},
		{name: "drain", do: func([]string) { drain(&api.DrainSpec{Deadline: -1}) }, undo: func() { drain(nil) }},
	} {
		round++
		allocs, ids := map[string]string{}, []string{}
		for name, w := range waits {
			id := fmt.Sprintf("%s-%d", name, round)
			w.id = id
			hcl := w.hcl()
			if w.image != "" {
				hcl = strings.Replace(hcl, fmt.Sprintf("%q", cluster.Image), fmt.Sprintf("%q", w.image), 1)
			}
			before := registry.waiting(name)
			if _, err := c.Run(ctx, hcl); err != nil {
				t.Fatal(err)
			}
			if w.image == "" {
				before = 0
			}
			allocs[name], ids = await(id, w, before), append(ids, id)
		}
		if round == 1 {
			run(t, ctx, c, jobSpec{id: "other"})
			for _, l := range leases(t, node) {
				if l.AllocID == allocs["manifest"] {
					t.Error("a task that waits for its image holds a lease")
				}
			}
		}
		if way.again != nil {
			before := map[string]int{"manifest": registry.waiting("manifest"), "layer": registry.waiting("layer"), "join": 1, "seat": 1}
			way.again()
			for name, w := range waits {
				await(fmt.Sprintf("%s-%d", name, round), w, before[name])
			}
		}
		begin := time.Now()
		way.do(ids)
		// Without the driver's doing, each ends with its own patience: ten, five and one minutes,
		// and the seat never.
		limited, cancel := context.WithTimeout(ctx, 45*time.Second)
		for name, alloc := range allocs {
			if err := ended(limited, c, alloc, way.purged); err != nil {
				t.Errorf("%s, %s: %v", way.name, name, err)
			}
		}
		t.Logf("%s: all have ended after %.1f s", way.name, time.Since(begin).Seconds())
		cancel()
		for _, l := range leases(t, node) {
			for name, alloc := range allocs {
				if l.AllocID == alloc {
					t.Errorf("%s, %s: its lease is still there", way.name, name)
				}
			}
		}
		if way.undo != nil {
			way.undo()
		}
	}
}

// ended waits until an allocation has ended. Of one whose job was purged the servers know
// nothing more, and its directory goes with it.
func ended(ctx context.Context, c *cluster.Cluster, alloc string, purged bool) error {
	if !purged {
		_, err := c.WaitAlloc(ctx, alloc, "to end", func(a *api.Allocation) bool { return a.ClientTerminalStatus() })
		return err
	}
	for {
		_, err := os.Stat(filepath.Join(c.Nodes[0].Dir("nomad"), "alloc", alloc))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("its directory is still there: %w", ctx.Err())
		}
	}
}

// pauseIn waits a moment between two looks.
func pauseIn(t *testing.T, ctx context.Context) {
	t.Helper()
	select {
	case <-time.After(100 * time.Millisecond):
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	}
}
