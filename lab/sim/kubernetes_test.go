// SPDX-License-Identifier: MPL-2.0

package sim

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// somePods are a gang of two, of which one still runs, a pod of the next hour without GPUs, and one
// that waits.
const somePods = `{"apiVersion": "v1", "kind": "List", "items": [
{"metadata": {"name": "late", "namespace": "web", "creationTimestamp": "2026-03-01T11:00:00Z"},
 "spec": {"containers": [{"resources": {"requests": {"cpu": "250m", "memory": "1G"}}}, {"resources": {"limits": {"cpu": "1.5"}}}]},
 "status": {"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": {"startedAt": "2026-03-01T11:00:10Z", "finishedAt": "2026-03-01T11:00:40Z"}}}]}},
{"metadata": {"name": "w-0", "namespace": "nlp", "creationTimestamp": "2026-03-01T10:00:00Z", "labels": {"scheduling.x-k8s.io/pod-group": "w"}},
 "spec": {"activeDeadlineSeconds": 7200, "nodeSelector": {"nvidia.com/gpu.product": "A100"}, "containers": [{"resources": {"requests": {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "8"}, "limits": {"nvidia.com/gpu": "8"}}}]},
 "status": {"phase": "Failed", "containerStatuses": [{"state": {"terminated": {"startedAt": "2026-03-01T10:05:00Z", "finishedAt": "2026-03-01T10:06:00Z"}}}]}},
{"metadata": {"name": "w-1", "namespace": "nlp", "creationTimestamp": "2026-03-01T10:00:01Z", "annotations": {"scheduling.k8s.io/group-name": "w"}},
 "spec": {"containers": [{"resources": {"limits": {"cpu": "8", "memory": "65536Mi", "amd.com/gpu": "1"}}}]},
 "status": {"phase": "Running", "containerStatuses": [{"state": {"running": {"startedAt": "2026-03-01T10:05:40Z"}}}]}},
{"metadata": {"name": "waits", "namespace": "nlp", "creationTimestamp": "2026-03-01T10:00:02Z"}, "spec": {"containers": [{}]}, "status": {"phase": "Pending"}}
]}`

func TestReadKubernetes(t *testing.T) {
	k, err := ReadKubernetes(strings.NewReader(somePods))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, k := range k.Tasks {
		got = append(got, fmt.Sprintf("%s at %g for %g of %g: %d mCPU %d MiB %d x %d %v %q %q", k.Name, k.ArriveSecond, k.RunSeconds, k.LimitSeconds, k.CPUMilli, k.MemoryMiB, k.GPUs, k.GPUMilli, k.Models, k.Queue, k.Gang))
	}
	want := `nlp/w-0 at 0 for 60 of 7200: 8000 mCPU 65536 MiB 8 x 1000 [A100] "nlp" "nlp/w"
nlp/w-1 at 1 for 3300 of 0: 8000 mCPU 65536 MiB 1 x 1000 [] "nlp" "nlp/w"
web/late at 3600 for 30 of 0: 1750 mCPU 954 MiB 0 x 0 [] "web" ""`
	if strings.Join(got, "\n") != want {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), want)
	}
	if k.Gangs != 1 || k.NeverRan != 1 || k.Running != 1 {
		t.Errorf("%d gangs, %d never ran, %d run", k.Gangs, k.NeverRan, k.Running)
	}
	read, err := ReadArrivals(arrivalsOf(t, k.Tasks))
	if err != nil || read[1].Gang != "nlp/w" {
		t.Errorf("a replay reads %+v, %v", read, err)
	}
}

// What cannot be is refused, with its pod.
func TestPodsThatCannotBe(t *testing.T) {
	for text, want := range map[string]string{
		`{"items": [`:   "unexpected EOF",
		`{"items": []}`: "none of 0 pods ran",
		strings.Replace(somePods, `"64Gi"`, `"64Gb"`, 1):                          `pod nlp/w-0: memory: "64Gb" is not valid`,
		strings.Replace(somePods, `"250m"`, `"-1"`, 1):                            `pod web/late: cpu: "-1" is not valid`,
		strings.Replace(somePods, `"amd.com/gpu": "1"`, `"amd.com/gpu": "65"`, 1): "65 GPUs, at most 64 are possible",
	} {
		if _, err := ReadKubernetes(strings.NewReader(text)); !errors.Is(err, ErrTrace) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
