package driver

import (
	"testing"

	"github.com/shoenig/test/must"
)

func TestStartWait(t *testing.T) {
	forEachContainerd(t, func(t *testing.T, e *env) {
		out, result := e.run(defaultTaskConfig("sh", "-c", "echo hello; exit 7"))
		must.Eq(t, "hello\n", out)
		must.Eq(t, 7, result.ExitCode)
		must.NoError(t, result.Err)
	})
}
