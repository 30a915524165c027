// SPDX-License-Identifier: MPL-2.0

package agentconfig

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/nomad/plugins/shared/hclspec"
	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/internal/hclform"
)

var plugin = Plugin{Name: "mine", Replaces: []string{"old"}, Schema: hclspec.NewObject(map[string]*hclspec.Spec{
	"mode": hclspec.NewDefault(hclspec.NewAttr("mode", "string", false), hclspec.NewLiteral(`"whole"`)),
	"size": hclspec.NewAttr("size", "string", false),
})}

type config struct {
	Mode string `codec:"mode"`
	Size string `codec:"size"`
}

// write makes files and returns the path of the only one, or of their folder.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	path := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(path, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if len(files) == 1 {
			return filepath.Join(path, name)
		}
	}
	return path
}

func TestWhereTheConfigurationIsFound(t *testing.T) {
	for name, tc := range map[string]struct {
		files map[string]string
		want  config
	}{
		"inside alone":    {map[string]string{"a.hcl": `size = "2G"`}, config{"whole", "2G"}},
		"agent":           {map[string]string{"a.hcl": "client {}\nplugin \"other\" {}\nplugin \"mine\" {\n config {\n  mode = \"slice\"\n }\n}\n"}, config{"slice", ""}},
		"block alone":     {map[string]string{"a.hcl": "plugin \"mine\" {}\n"}, config{"whole", ""}},
		"JSON":            {map[string]string{"a.json": `{"plugin": {"mine": {"config": {"mode": "slice"}}}}`}, config{"slice", ""}},
		"JSON with lists": {map[string]string{"a.json": `{"plugin": [{"mine": [{"config": [{"size": "2G"}]}]}]}`}, config{"whole", "2G"}},
		"JSON inside":     {map[string]string{"a.json": `{"size": "2G"}`}, config{"whole", "2G"}},
		"function":        {map[string]string{"a.hcl": `size = upper("2g")`}, config{"whole", "2G"}},
		"names in quotes, as HCL's first version has them": {map[string]string{"a.hcl": "client {\n meta {\n  \"rack.row\" = \"7\"\n  \"rack/row\" = \"8\"\n  \"1\" = \"9\"\n }\n chroot_env {\n  \"/usr/bin/env\" = \"/bin/env\"\n }\n options = { \"a.b\" = \"c=\" }\n}\nplugin \"mine\" {\n config {\n  \"mode\" = \"sl${lower(\"ICE\")}\"\n }\n}\n"}, config{"slice", ""}},
		"folder":           {map[string]string{"a.hcl": "client {}\n", "b.hcl": "plugin \"mine\" {\n config {\n  mode = \"slice\"\n }\n}\n", "c.txt": "{{"}, config{"slice", ""}},
		"halves in folder": {map[string]string{"a.hcl": "plugin \"mine\" {\n config {\n  mode = \"slice\"\n }\n}\n", "b.json": `{"plugin": {"mine": {"config": {"size": "2G"}}}}`}, config{"slice", "2G"}},
	} {
		var got config
		if err := plugin.Read(write(t, tc.files), &got); err != nil || got != tc.want {
			t.Errorf("%s: got %+v, %v; want %+v", name, got, err, tc.want)
		}
	}
	var got config
	if err := plugin.Read("", &got); err != nil || got != (config{"whole", ""}) {
		t.Errorf("no file: got %+v, %v", got, err)
	}
}

func TestMistakesAreNamed(t *testing.T) {
	for says, files := range map[string]map[string]string{
		`there is no block plugin "mine"`:             {"a.hcl": "plugin \"docker\" {}\n"},
		`the blocks there are for docker, exec2`:      {"a.hcl": "plugin \"docker\" {}\nplugin \"exec2\" {}\n"},
		`plugin "old" is another one`:                 {"a.hcl": "plugin \"old\" {}\n"},
		`without which Nomad does not load`:           {"a.hcl": "client {}\n", "b.hcl": "server {}\n"},
		"no file there ends in .hcl or .json":         {"a.txt": "", "b.conf": ""},
		"An argument named \"modus\" is not expected": {"a.hcl": `modus = "slice"`},
		"Attribute redefined":                         {"a.hcl": "mode = \"a\"\nmode = \"b\"\n"},
		"Duplicate argument":                          {"a.hcl": "plugin \"mine\" {\n config {\n  mode = \"a\"\n }\n}\n", "b.hcl": "plugin \"mine\" {\n config {\n  mode = \"b\"\n }\n}\n"},
		"Variables not allowed":                       {"a.hcl": "mode = slice\n"},
		"Missing value":                               {"a.json": "{"},
	} {
		var got config
		if err := plugin.Read(write(t, files), &got); err == nil || !strings.Contains(err.Error(), says) || !strings.HasPrefix(err.Error(), "read configuration: ") {
			t.Errorf("%v: got %v, want %q", files, err, says)
		}
	}
	// All of several are told, also those outside config { }, and the rest is read.
	path := write(t, map[string]string{"a.hcl": "plugin \"mine\" {\n args = []\n mode = \"a\"\n config {\n  color = 1\n  taste = 2\n  size = \"4G\"\n  smell {}\n }\n}\n"})
	var got config
	err := plugin.Read(path, &got)
	var several hclform.Mistakes
	must.True(t, errors.As(err, &several), must.Sprint(err))
	must.SliceLen(t, 4, several, must.Sprint(err))
	must.Eq(t, "4G", got.Size)
	for _, says := range []string{`"mode"`, "move it in there", `"color"`, `"taste"`, `"smell"`} {
		must.StrContains(t, err.Error(), says)
	}
	must.StrNotContains(t, err.Error(), "other diagnostic")
	if err := plugin.Read("no-such-file", &config{}); err == nil || !strings.Contains(err.Error(), "no-such-file: no such file") {
		t.Errorf("got %v", err)
	}
}

func TestAgentsAreRead(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.hcl":  "data_dir = \"/old\"\nserver { enabled = true }\nclient {\n  enabled = true\n  cni_path = \"/usr/lib/cni\"\n}\nplugin \"docker\" {}",
		"b.json": `{"data_dir": "/new", "plugin_dir": "/plugins", "telemetry": {"publish_allocation_metrics": true}, "plugin": {"nomad-device-gpu": {"config": {}}}}`,
		"c.hcl":  "telemetry { prometheus_metrics = true }",
	} {
		must.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	got, err := ReadAgent(dir)
	must.NoError(t, err)
	must.Eq(t, Agent{DataDir: "/new", PluginDir: "/plugins", CNIPath: "/usr/lib/cni", PublishMetrics: true, Plugins: []string{"docker", "nomad-device-gpu"}}, got)

	for text, want := range map[string]string{
		"data_dir = [":                  "Missing expression",
		"data_dir = [1]":                "data_dir is not text",
		"client { cni_path = nowhere }": "Variables not allowed",
		"plugin {}":                     "Missing name for plugin",
	} {
		path := filepath.Join(t.TempDir(), "a.hcl")
		must.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		_, err := ReadAgent(path)
		must.ErrorContains(t, err, want)
	}
	_, err = ReadAgent(filepath.Join(dir, "none"))
	must.ErrorContains(t, err, "no such file")
}

// A mistake beside names in quotes is told where it stands.
func TestMistakesKeepTheirPlaces(t *testing.T) {
	path := write(t, map[string]string{"a.hcl": "client {\n meta { \"a.b\" = \"1\" }\n}\nplugin \"mine\" {\n config {\n  \"mode\" = \"slice\", \"size\" = 1 2\n }\n}\n"})
	var got config
	if err := plugin.Read(path, &got); err == nil || !strings.Contains(err.Error(), "a.hcl:6,") {
		t.Errorf("got %v, want an error in line 6", err)
	}
}
