// SPDX-License-Identifier: MPL-2.0

package framework

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

const (
	rendezvousPort = "rendezvous"
	rankTag        = "rank-"
	// awaitTemplate makes a template wait. Nomad renders a template only when
	// all that it asked for exists, so it asks for a variable that does not:
	// "nomad/jobs" is readable with every task's own identity. Should it exist,
	// a path below it takes its place.
	awaitTemplate = `{{ if nomadVarExists "nomad/jobs" }}{{ with nomadVar "nomad/jobs/awaits-rendezvous" }}{{ end }}` +
		`{{ else }}{{ with nomadVar "nomad/jobs" }}{{ end }}{{ end }}`
)

// addRendezvous lets the allocations of a group find each other. Each of them
// registers one service, tagged with its rank, before its task starts; a
// template of the task waits until the ranks it needs are there. When one of
// these moves, the task restarts with the new address; when one has finished
// and is gone, the others are left alone.
func addRendezvous(setup *Setup, o Options, s Share, g Group) error {
	switch {
	case g.Count < 1:
		return fmt.Errorf("distributed training needs a group count of at least 1, it is %d", g.Count)
	case g.Network == "bridge" || g.Network == "none":
		return fmt.Errorf("distributed training in group %q needs network mode \"host\" or a CNI network that routes between the nodes: "+
			"the ranks open ports of their own, which mode %q does not forward", g.Group, g.Network)
	case g.elastic() && o.Kind == TensorFlow:
		return fmt.Errorf("a distributed TensorFlow training needs all of its %d workers: TF_CONFIG lists them; leave gpu_gang_min out, or use PyTorch with torchrun", g.Count)
	}
	name := ServiceName(g)
	setup.Port = &Port{Label: rendezvousPort}
	setup.HostNetwork = g.Network == "" || g.Network == "host"
	setup.Service = &Service{
		Name: name, PortLabel: rendezvousPort, Provider: "nomad",
		Tags: []string{"gpu-rendezvous", rankTag + "${NOMAD_ALLOC_INDEX}"},
	}
	setup.Env[EnvRanks] = g.Ranks()
	t := Template{DestPath: "local/gpu-rendezvous.env", ChangeMode: "restart", Envvars: true, Perms: "0644"}
	switch {
	case o.Kind == TensorFlow:
		t.EmbeddedTmpl = tensorflowRendezvous(name, g.Count)
	case g.elastic():
		t.EmbeddedTmpl, t.Wait = torchrunRendezvous(name, g.Least, g.Most), settled
	default:
		t.EmbeddedTmpl = pytorchRendezvous(name, g.Count)
	}
	setup.Templates = append(setup.Templates, t)
	addRanks(setup, o, s, g)
	if !s.Whole {
		setup.Notes = append(setup.Notes, "ranks that share one physical GPU: NCCL refuses two ranks on the same GPU; "+
			"ask for whole GPUs or MIG instances, or use the gloo backend")
	}
	return nil
}

// elastic reports whether the training goes on with fewer or more allocations.
func (g Group) elastic() bool { return g.Most > g.Least && g.Least > 0 }

// Ranks is how many allocations take part: "4", or from how many to how many, "2:4".
func (g Group) Ranks() string {
	if g.elastic() {
		return fmt.Sprintf("%d:%d", g.Least, g.Most)
	}
	return strconv.Itoa(g.Count)
}

// addRanks sets the variables known before the task starts. One GPU per allocation
// makes it a rank; with several, torchrun starts one process for each and
// numbers them itself. In an elastic training only torchrun knows the numbers.
func addRanks(setup *Setup, o Options, s Share, g Group) {
	env := setup.Env
	env["NCCL_SOCKET_IFNAME"] = "^lo,docker,nomad,veth,cni"
	if o.Interface != "" {
		env["NCCL_SOCKET_IFNAME"] = o.Interface
		if !strings.HasPrefix(o.Interface, "^") {
			env["GLOO_SOCKET_IFNAME"] = o.Interface
		}
	}
	env["NCCL_DEBUG"] = "WARN"
	if o.Kind == TensorFlow {
		return
	}
	env["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1"
	if g.elastic() {
		env["PET_NNODES"] = g.Ranks()
		env[envPerNode] = strconv.Itoa(s.GPUs)
		env["PET_RDZV_BACKEND"] = "c10d"
		env["PET_RDZV_ID"] = setup.Service.Name
		env["PET_MAX_RESTARTS"] = maxRestarts
		setup.Notes = append(setup.Notes, fmt.Sprintf("%d to %d allocations: start the program with torchrun, which takes its arguments from PET_* "+
			"and sets RANK and WORLD_SIZE anew whenever an allocation joins or is lost; the program goes on from its last checkpoint", g.Least, g.Most))
		return
	}
	env["WORLD_SIZE"] = strconv.Itoa(g.Count * s.GPUs)
	env["NODE_RANK"] = "${NOMAD_ALLOC_INDEX}"
	if s.GPUs == 1 {
		env["RANK"] = "${NOMAD_ALLOC_INDEX}"
		env["LOCAL_RANK"] = "0"
		env["LOCAL_WORLD_SIZE"] = "1"
		return
	}
	env["PET_NNODES"] = strconv.Itoa(g.Count)
	env[envPerNode] = strconv.Itoa(s.GPUs)
	env["PET_NODE_RANK"] = "${NOMAD_ALLOC_INDEX}"
	setup.Notes = append(setup.Notes, fmt.Sprintf("%d GPUs per allocation: start the program with torchrun, which takes its arguments from PET_* and sets RANK for each of the %d processes", s.GPUs, s.GPUs))
}

// settled spares the ranks that start together a restart for each later rank.
var settled = &Wait{Min: 2e9, Max: 20e9}

// maxRestarts is how often torchrun starts its processes again after one failed,
// as all do when one is lost. Then it ends, and Nomad's restart block counts.
const maxRestarts = "3"

// pytorchRendezvous needs rank 0 alone: the others come to it. Two services
// with its tag, while one allocation replaces another, count as none. A rank
// beyond the number that all were told, which comes of a count that was changed
// around the service, waits until they are told the new one.
func pytorchRendezvous(service string, count int) string {
	return byRank(service) + `{{ $master := index $ranks "` + rankTag + `0" }}` +
		`{{ if and (eq (len $master) 1) ` + below(count) + ` }}{{ with index $master 0 -}}
MASTER_ADDR={{ .Address }}
MASTER_PORT={{ .Port }}
PET_MASTER_ADDR={{ .Address }}
PET_MASTER_PORT={{ .Port }}
{{ end }}{{ else }}` + awaitTemplate + `{{ end }}
`
}

// torchrunRendezvous is for a training that goes on with fewer or more
// allocations: torchrun meets at the lowest rank that is there, which is another
// one when that rank is lost.
func torchrunRendezvous(service string, least, most int) string {
	return byRank(service) + fmt.Sprintf(`{{ $there := 0 }}{{ $first := "" }}{{ $here := print "%[1]s" (env "NOMAD_ALLOC_INDEX") }}`+
		`{{ range $rank := loop %[2]d }}{{ $tag := print "%[1]s" $rank }}`+
		`{{ if eq (len (index $ranks $tag)) 1 }}{{ $there = add $there 1 }}{{ if eq $first "" }}{{ $first = $tag }}{{ end }}{{ end }}{{ end }}`+
		`{{ if and (ge $there %[3]d) (eq (len (index $ranks $here)) 1) %[4]s -}}
{{ with index (index $ranks $first) 0 }}PET_RDZV_ENDPOINT={{ .Address }}:{{ .Port }}{{ end }}
PET_RDZV_CONF=is_host={{ if eq $first $here }}1{{ else }}0{{ end }}
{{ with index (index $ranks $here) 0 }}PET_LOCAL_ADDR={{ .Address }}{{ end }}
{{ else }}`, rankTag, most, least, below(most)) + awaitTemplate + `{{ end }}
`
}

// below is true in a template of the first count allocations of a group.
func below(count int) string {
	return fmt.Sprintf(`(lt (env "NOMAD_ALLOC_INDEX" | parseInt) %d)`, count)
}

// tensorflowRendezvous needs every rank: TF_CONFIG lists them all, in order.
// The value is quoted, since Nomad strips double quotes from a bare one.
func tensorflowRendezvous(service string, count int) string {
	ready, list := []string{below(count)}, []string(nil)
	for rank := range count {
		found := fmt.Sprintf(`(index $ranks "%s%d")`, rankTag, rank)
		ready = append(ready, fmt.Sprintf("(eq (len %s) 1)", found))
		list = append(list, fmt.Sprintf(`{{ with index %s 0 }}"{{ .Address }}:{{ .Port }}"{{ end }}`, found))
	}
	return byRank(service) + `{{ if and ` + strings.Join(ready, " ") + ` -}}
TF_CONFIG='{"cluster":{"worker":[` + strings.Join(list, ",") + `]},"task":{"type":"worker","index":{{ env "NOMAD_ALLOC_INDEX" }}}}'
{{ else }}` + awaitTemplate + `{{ end }}
`
}

// byRank starts a template with $ranks: the services by their tags.
func byRank(service string) string {
	return `{{ $ranks := byTag (nomadService "` + service + `") }}`
}

// ServiceName is the name under which a group's ranks register: a DNS label,
// made unique by a hash where the names had to be changed or cut.
func ServiceName(g Group) string {
	full := g.Job + "-" + g.Group + "-" + g.Task + "-ranks"
	label := make([]byte, 0, len(full))
	for _, c := range []byte(strings.ToLower(full)) {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' {
			label = append(label, c)
			continue
		}
		label = append(label, '-')
	}
	name := strings.Trim(string(label), "-")
	const longest = 63
	if name == full && len(name) <= longest {
		return name
	}
	sum := sha256.Sum256([]byte(g.Job + "\x00" + g.Group + "\x00" + g.Task))
	suffix := "-" + hex.EncodeToString(sum[:4])
	return strings.TrimRight(name[:min(len(name), longest-len(suffix))], "-") + suffix
}
