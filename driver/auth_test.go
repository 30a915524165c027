// SPDX-License-Identifier: MPL-2.0

package driver

import (
	"testing"

	"github.com/shoenig/test/must"

	"github.com/nomad-gpu/nomad-gpu/driver/config"
	"github.com/nomad-gpu/nomad-gpu/internal/taskconfig"
)

func TestLoginsInTheirOrder(t *testing.T) {
	var block config.Config
	parse(t, config.Schema, `
registry {
  server_address = "a.example"
  username       = "of-a"
  password       = "1"
}
registry {
  server_address = "b.example:5000"
  username       = "of-b"
  password       = "2"
}
auth {
  username = "of-all"
  password = "3"
}`, &block)
	_, err := block.Parse()
	must.NoError(t, err)
	for _, test := range []struct {
		task       taskconfig.Auth
		host, want string
	}{
		{taskconfig.Auth{}, "a.example", "of-a 1"},
		{taskconfig.Auth{}, "b.example:5000", "of-b 2"},
		{taskconfig.Auth{}, "registry-1.docker.io", "of-all 3"},
		{taskconfig.Auth{}, "c.example", " "},
		{taskconfig.Auth{Username: "of-task", Password: "4"}, "mirror.example", " "},
		{taskconfig.Auth{Username: "of-task", Password: "4", ServerAddress: "https://C.example"}, "c.example", "of-task 4"},
		{taskconfig.Auth{Username: "of-task", Password: "4", ServerAddress: "https://c.example:5000/v2/"}, "c.example:5000", "of-task 4"},
		{taskconfig.Auth{Username: "of-task", Password: "4", ServerAddress: "https://c.example:5000"}, "c.example", " "},
		{taskconfig.Auth{Username: "of-task", Password: "4", ServerAddress: "https://c.example@d.example"}, "c.example", " "},
		{taskconfig.Auth{Username: "of-task", Password: "4", ServerAddress: "index.docker.io"}, dockerHubHost, "of-task 4"},
		{taskconfig.Auth{Username: "of-task", Password: "4"}, "a.example", "of-task 4"},
		{taskconfig.Auth{Username: "of-task", Password: "4", ServerAddress: "c.example"}, "a.example", "of-a 1"},
		{taskconfig.Auth{Username: "of-task", Password: "4", ServerAddress: dockerHubServer}, dockerHubHost, "of-task 4"},
		{taskconfig.Auth{Username: "of-task", Password: "4", ServerAddress: dockerHub}, dockerHubHost, "of-task 4"},
		{taskconfig.Auth{Username: "of-task", Password: "4", ServerAddress: dockerHubHost}, dockerHubHost, "of-task 4"},
		{taskconfig.Auth{Username: "of-task", Password: "4", ServerAddress: dockerHub}, "c.example", " "},
	} {
		username, secret, err := credentialsFor(test.task, "a.example", block.Registries, block.Auth)(test.host)
		must.NoError(t, err)
		must.Eq(t, test.want, username+" "+secret, must.Sprintf("%+v", test))
	}
	block.Registries[0].Username = ""
	_, err = block.Parse()
	must.ErrorContains(t, err, `registry[0]: server_address "a.example" and username ""`)
}

// Logins are told apart without being written down.
func TestLoginsAreToldApart(t *testing.T) {
	login := taskconfig.Auth{Username: "user", Password: "secret", ServerAddress: "a.example"}
	must.Eq(t, accessOf(login), accessOf(login))
	must.NotEq(t, "", accessOf(login))
	must.Eq(t, "", accessOf(taskconfig.Auth{Password: "secret"}))
	for _, change := range []func(*taskconfig.Auth){
		func(a *taskconfig.Auth) { a.Username = "other" }, func(a *taskconfig.Auth) { a.Password = "other" }, func(a *taskconfig.Auth) { a.ServerAddress = "other" },
	} {
		other := login
		change(&other)
		must.NotEq(t, accessOf(login), accessOf(other))
	}
}
