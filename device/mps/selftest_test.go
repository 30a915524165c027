// SPDX-License-Identifier: MPL-2.0

package mps

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
)

// With each control program the way of the gate is tried once for each daemon, which neither
// shuts the server down nor keeps a program from it.
func TestGateIsTriedOncePerDaemon(t *testing.T) {
	withEach(t, func(t *testing.T, b *bench) {
		s := b.wantReady()
		server := b.server()
		b.untilLogged(s, "control.log", fmt.Sprintf("NEW CLIENT %d from user 0", os.Getpid()))
		b.untilPasses(gateOf(s))
		if now := b.server(); now != server {
			t.Errorf("the server is %d, and was %d", now, server)
		}
		if err := b.control(device).testGate(server); err != nil {
			t.Error(err)
		}
	})
}

// A daemon with another protocol has a fault of its own, until it is replaced.
func TestGateThatDoesNotKnowTheProtocolSaysSo(t *testing.T) {
	b := newBench(t)
	s := b.wantReady()
	b.behave("other-protocol")
	if err := syscall.Kill(s.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s = b.until("the protocol is not known", reason(`the gate does not know the protocol of this driver's MPS: the answer is not known: packet "OUTBCUF2\x00"`))
	if !strings.Contains(s.Action, "install a release of this plugin that knows the driver") {
		t.Errorf("the action is %q", s.Action)
	}
	b.behave()
	b.until("the daemon is ready", ready)
}
