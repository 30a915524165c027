// SPDX-License-Identifier: MPL-2.0

package service

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/hashicorp/nomad/api"

	"github.com/nomad-gpu/nomad-gpu/e2e/cluster"
)

// scale sends a scaling request as it is and returns Nomad's status, or the service's,
// and the text.
func scale(ctx context.Context, t *testing.T, address, namespace, id, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, http.MethodPut, address+"/v1/job/"+id+"/scale?namespace="+namespace, bytes.NewReader([]byte(body)))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, strings.TrimSpace(string(text))
}

// to is the body of a scaling of the group g.
func to(count int) string { return fmt.Sprintf(`{"Target":{"Group":"g"},"Count":%d}`, count) }

func withoutDigits(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsDigit(r) {
			return -1
		}
		return r
	}, s)
}

// scalable is a job with a scaling policy, of which nothing runs yet.
func scalable(id, namespace string, meta map[string]string, devices []*api.RequestedDevice) *api.Job {
	j := job{id: id, namespace: namespace, meta: meta, devices: devices, update: canaries(0)}.api()
	none, least, most := 0, int64(0), int64(4)
	j.TaskGroups[0].Count = &none
	j.TaskGroups[0].Scaling = &api.ScalingPolicy{Min: &least, Max: &most, Enabled: new(bool)}
	return j
}

// TestScalingIsAsNomadHasIt sends the same scalings to Nomad, about a job of its own, and
// through the service, about a job in a queue of one GPU that holds all of it: what Nomad
// refuses is refused with Nomad's words, what it accepts is accepted, and what the queue
// cannot pay for waits.
func TestScalingIsAsNomadHasIt(t *testing.T) {
	t.Parallel()
	ctx, c := start(t, 1)
	for _, name := range []string{"team", "other"} {
		if _, err := c.API.Namespaces().Register(&api.Namespace{Name: name}, nil); err != nil {
			t.Fatal(err)
		}
	}
	r := serve(ctx, t, c, "queue \"q\" {\n gpus = 1\n borrow = false\n namespaces = [\"team\"]\n}")
	admits(ctx, t, r)
	one := uint64(1)
	register := func(to *api.Client, j *api.Job) {
		t.Helper()
		if _, _, err := to.Jobs().Register(j, (&api.WriteOptions{Namespace: *j.Namespace}).WithContext(ctx)); err != nil {
			t.Fatal(err)
		}
	}
	register(c.API, scalable("twin", "other", nil, []*api.RequestedDevice{{Name: "nvidia/slice", Count: &one}}))
	register(r.API, scalable("twin", "team", map[string]string{"gpu": "4G"}, nil))
	admitted(ctx, t, r, job{id: "full", namespace: "team", meta: map[string]string{"gpu": "1"}})

	same := func(id, body string) {
		t.Helper()
		want, said := scale(ctx, t, c.URL, "other", id, body)
		got, text := scale(ctx, t, r.URL, "team", id, body)
		if got != want || want >= 300 && withoutDigits(text) != withoutDigits(said) { // indexes differ
			t.Errorf("%s of job %s: %d %q, and Nomad alone answers %d %q", body, id, got, text, want, said)
		}
	}
	for _, body := range []string{
		to(9), to(-1), `{"Target":{"Group":"none"},"Count":2}`, `{"Count":2}`, `{"Target":{"Group":"g","Job":"else"},"Count":2}`,
		`{"Target":{"Group":"g"},"Count":2,"JobModifyIndex":1}`, `{"Target":{"Group":"g"},"Count":2,"Error":true}`,
		`{"Target":{"Group":"g"},"Message":"only a note"}`, `{"Target":{"Group":"g"},"Count":2`, `{"Target":{"Group":"g"},"Count":"2"}`,
	} {
		same("twin", body)
	}
	same("absent", to(2))

	// From zero, above what the queue can pay for now.
	same("twin", to(2))
	j, _, err := c.API.Jobs().Info("twin", &api.QueryOptions{Namespace: "team"})
	if err != nil || *j.TaskGroups[0].Count != 2 || !strings.Contains(constraints(j), "waits for quota: queue q holds 1 of") {
		t.Errorf("job twin: %s, %v", constraints(j), err)
	}
	until(ctx, t, "a deployment goes on", 3*time.Minute, func() (bool, string) {
		d, _, err := c.API.Jobs().LatestDeployment("twin", &api.QueryOptions{Namespace: "team"})
		return err == nil && d != nil && d.Status == "running", fmt.Sprint(d, err)
	})
	if _, said := scale(ctx, t, r.URL, "team", "twin", to(4)); said != "job scaling blocked due to active deployment" {
		t.Errorf("while a deployment goes on: %q", said)
	}
	if live := allocs(ctx, t, c.API, "team", "twin"); len(live) != 0 {
		t.Errorf("%d allocs run above the queue's bound", len(live))
	}
	if _, _, err := c.API.Jobs().Deregister("full", true, &api.WriteOptions{Namespace: "team"}); err != nil {
		t.Fatal(err)
	}
	until(ctx, t, "start what was scaled from zero", 2*time.Minute, func() (bool, string) {
		live := allocs(ctx, t, c.API, "team", "twin")
		return len(live) == 2 && live[0].ClientStatus == "running" && live[1].ClientStatus == "running", fmt.Sprint(len(live))
	})
	until(ctx, t, "end the deployment", 2*time.Minute, func() (bool, string) {
		d, _, err := c.API.Jobs().LatestDeployment("twin", &api.QueryOptions{Namespace: "team"})
		return err == nil && d.Status == "successful", fmt.Sprint(d, err)
	})
	// What runs cannot wait: a hold would be for all of it.
	if status, text := scale(ctx, t, r.URL, "team", "twin", to(4)); status != http.StatusConflict || !strings.Contains(text, "over the quota") {
		t.Errorf("more than the queue can pay for: %d %q", status, text)
	}
	scaleAGang(ctx, t, c, r)
	scaleInAnEmptyPool(ctx, t, c, r)
	doubleBooked(ctx, t, c.API)
}

// scaleAGang scales a gang from zero for which there is no room: it waits as one.
func scaleAGang(ctx context.Context, t *testing.T, c *cluster.Cluster, r *replica) {
	t.Helper()
	j := scalable("gang", "default", map[string]string{"gpu": "1", "gpu_gang": "true"}, nil)
	if _, _, err := r.API.Jobs().Register(j, nil); err != nil {
		t.Fatal(err)
	}
	if status, text := scale(ctx, t, r.URL, "default", "gang", to(2)); status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	j, _, err := c.API.Jobs().Info("gang", nil)
	if err != nil || !strings.Contains(constraints(j), "waits for room") {
		t.Errorf("job gang: %s, %v", constraints(j), err)
	}
	if _, _, err := c.API.Jobs().Deregister("twin", true, &api.WriteOptions{Namespace: "team"}); err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.API.Jobs().Deregister("twin", true, &api.WriteOptions{Namespace: "other"}); err != nil {
		t.Fatal(err)
	}
	runs(ctx, t, c.API, "gang", 2)
}

// scaleInAnEmptyPool scales a job in a node pool that has no node yet: it waits, as it
// does at Nomad alone.
func scaleInAnEmptyPool(ctx context.Context, t *testing.T, c *cluster.Cluster, r *replica) {
	t.Helper()
	if _, err := c.API.NodePools().Register(&api.NodePool{Name: "burst"}, nil); err != nil {
		t.Fatal(err)
	}
	j, pool := scalable("early", "default", map[string]string{"gpu": "1(A100)"}, nil), "burst"
	j.NodePool = &pool
	if _, _, err := r.API.Jobs().Register(j, nil); err != nil {
		t.Fatal(err)
	}
	if status, text := scale(ctx, t, r.URL, "default", "early", to(2)); status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	j, _, err := c.API.Jobs().Info("early", nil)
	if err != nil || !strings.Contains(constraints(j), "waits for room: node pool burst has no node with GPUs yet") {
		t.Errorf("job early: %s, %v", constraints(j), err)
	}
}
