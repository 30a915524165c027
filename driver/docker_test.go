// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/drivers"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/internal/golden"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

// recordedDockerOptions are those of Nomad 1.11.3; a test in e2e/tools/nomad holds
// the list against its code.
func recordedDockerOptions(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("testdata/docker-options.txt")
	must.NoError(t, err)
	return strings.Fields(string(text))
}

// Every option of Docker's driver has a row in the documentation, which says what
// is true of the schema.
func TestDockerOptionsAreDocumented(t *testing.T) {
	recorded := recordedDockerOptions(t)
	schema := config.TaskSchema.GetObject().GetAttributes()
	var names []string
	var rows strings.Builder
	rows.WriteString("| option | here | |\n|---|---|---|\n")
	for _, option := range taskconfig.DockerOptions {
		names = append(names, option.Name)
		must.MapContainsKey(t, schema, option.Name)
		if option.Kind != taskconfig.DockerSame {
			must.NotEq(t, "", option.Note, must.Sprint(option.Name, " says nothing"))
		}
		fmt.Fprintf(&rows, "| `%s` | %s | %s |\n", option.Name, option.Kind, option.Note)
	}
	must.Eq(t, recorded, names)
	page := filepath.Join("..", "docs", "docker.md")
	text, err := os.ReadFile(page)
	must.NoError(t, err)
	golden.Compare(t, filepath.Join("..", page), golden.Between(t, string(text), "options", rows.String()))
}

// written is a task whose config block has HCL in it, checked as a start would.
func written(t *testing.T, hcl string) (taskconfig.Config, error) {
	t.Helper()
	var raw map[string]any
	parse(t, config.TaskSchema, "image = \"redis:7\"\n"+hcl, &raw)
	cfg := &drivers.TaskConfig{Name: "web"}
	must.NoError(t, cfg.EncodeConcreteDriverConfig(&raw))
	return config.Task(cfg, taskconfig.Policy{AllowCaps: taskconfig.DefaultCaps})
}

func TestDockerOptionsAreAnswered(t *testing.T) {
	samples := map[string]string{
		"bool": "true", "number": "5", "string": `"x"`, "list(string)": `["x"]`, "list(map(number))": "{ web = 80 }",
	}
	blocks := map[string]string{
		"mount": "mount {\n type = \"bind\"\n source = \"a\"\n target = \"/a\"\n bind_options {\n propagation = \"rslave\"\n }\n}", "storage_opt": "storage_opt {\n size = \"10G\"\n}",
	}
	for _, option := range taskconfig.DockerOptions {
		if !option.Understood() {
			continue
		}
		hcl := blocks[option.Name]
		if hcl == "" {
			must.MapContainsKey(t, samples, option.Type)
			hcl = option.Name + " = " + samples[option.Type]
		}
		_, err := written(t, hcl)
		must.EqError(t, err, option.Name+": is an option of Docker's driver; "+option.Note)
	}
	// What says nothing asks for nothing.
	_, err := written(t, "interactive = false\nwork_dir = \"\"\ndns_servers = []")
	must.NoError(t, err)
}

func TestDockersOwnWords(t *testing.T) {
	for _, test := range []struct{ hcl, says string }{
		{`logging { type = "json-file" }`, ""},
		{"logging {\n driver = \"local\"\n}", ""},
		{"logging {\n type = \"json-file\"\n config {\n max-size = \"1m\"\n max-file = 2\n }\n}", `2 mistakes: (1) logging: max-file: Nomad keeps the output; write logs { max_files = 10, max_file_size = 10 } in the task, in MiB. (2) logging: max-size: `},
		{`logging { type = "none" }`, `logging: "none": write logs { disabled = true } in the task`},
		{"logging {\n driver = \"fluentd\"\n config { fluentd-address = \"x\" }\n}", `logging: "fluentd": the output goes to Nomad`},
		{`healthchecks { disable = true }`, ""},
		{`healthchecks { disable = false }`, "healthchecks: an image's own health checks never run"},
		{`volumes = ["local/a:/a"]`, ""},
		{`volumes = ["local/a:/a:rw,rslave", "/srv:/srv:ro"]`, ""},
		{`volumes = ["local/a:/a:ro,rslave"]`, "mounts: target \"/a\": propagation rslave brings"},
		{`volumes = ["/only"]`, `volumes: "/only" is not SOURCE:TARGET`},
		{`volumes = ["a:b:c:d"]`, `volumes: "a:b:c:d" is not SOURCE:TARGET`},
		{`volumes = [":/a"]`, `volumes: ":/a" is not SOURCE:TARGET`},
		{`volumes = ["a:"]`, `volumes: "a:" is not SOURCE:TARGET`},
		{`volumes = ["local/a:/a:Z"]`, `volumes: "local/a:/a:Z": option Z changes the SELinux label`},
		{`volumes = ["local/a:/a:nocopy"]`, `volumes: "local/a:/a:nocopy": option "nocopy" is not one of ro, rw, `},
		{`volumes = ["local/a:/proc"]`, `mounts: target "/proc" is the runtime's`},
		{`volumes = ["local/a:a"]`, `mounts: target "a" is not an absolute`},
		{`file_limit = 2048`, ""},
		{`file_limit = -1`, "file_limit: -1 is not between 0 and"},
		{"file_limit = 2048\nulimit { nofile = \"1:2\" }", `file_limit: 2048 contradicts ulimit { nofile = "1:2" }`},
		{`cpuset_mems = "0-"`, `cpuset_mems: "0-" is not a list of memory nodes`},
	} {
		_, err := written(t, test.hcl)
		if test.says == "" {
			must.NoError(t, err, must.Sprint(test.hcl))
			continue
		}
		must.ErrorContains(t, err, test.says, must.Sprint(test.hcl))
	}
	config, err := written(t, `volumes = ["local/a:/a:rw,rslave", "/srv:/srv:ro"]`)
	must.NoError(t, err)
	must.Eq(t, []taskconfig.MountConfig{
		{Type: "bind", Source: "local/a", Target: "/a", Options: []string{"rw", "rslave"}}, {Type: "bind", Source: "/srv", Target: "/srv", Options: []string{"ro"}},
	}, config.Mounts)
	must.True(t, slices.Contains(config.Volumes, "/srv:/srv:ro"))
}

func TestVolumesAndFileLimit(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		block := defaultTaskConfig("sh", "-c", "touch /conf/x 2>/dev/null && echo writable; touch /local/y; ls /conf; ulimit -n; ulimit -Hn; grep Mems_allowed_list /proc/self/status")
		block.Volumes, block.FileLimit, block.CPUSetMems = []string{"local:/conf:ro"}, 4321, "0"
		out, _ := e.run(block)
		must.StrHasPrefix(t, "y\n4321\n4321\n", out)
		must.StrContains(t, out, "Mems_allowed_list:\t0\n")
		closed := e.with(func(c *config.Config) { c.Volumes.Enabled = false })
		block.Volumes = []string{"/etc:/conf"}
		_, _, err := closed.harness.StartTask(closed.quietTask(block))
		must.ErrorContains(t, err, "volumes are disabled")
	})
}
