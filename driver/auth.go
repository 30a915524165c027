package driver

import (
	"github.com/nomad-gpu/nomad-gpu/driver/runtime"
	"github.com/nomad-gpu/nomad-gpu/driver/spec"
)

// credentialsFor finds the login for a registry: the task's own, else the
// operator's. A login that names a server is sent to that server only.
func credentialsFor(task spec.Auth, operator AuthConfig) runtime.Credentials {
	return func(host string) (string, string, error) {
		for _, login := range []spec.Auth{task, {Username: operator.Username, Password: operator.Password, ServerAddress: operator.ServerAddress}} {
			if login.Username != "" && (login.ServerAddress == "" || login.ServerAddress == host) {
				return login.Username, login.Password, nil
			}
		}
		return "", "", nil
	}
}
