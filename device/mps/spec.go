// SPDX-License-Identifier: MPL-2.0

package mps

import "time"

// Spec is a daemon that shall run.
type Spec struct {
	// UUID is the device that it serves: a GPU or a MIG instance.
	UUID string
	// MemoryMiB is the most that one client may have; 0 sets no limit.
	MemoryMiB int64
	// Percent is the most of the multiprocessors that one client may use.
	Percent int
	// MaxClients is how many clients there can be.
	MaxClients int
	// Static divides the multiprocessors into partitions, in the place of Percent.
	Static bool
	// Protocol is the MPS protocol that is wanted of the daemon, ProtocolReason why 2 is.
	Protocol       Protocol
	ProtocolReason string
	// Members are the namespaces of the tasks on the device under MPS v3, as the leases that
	// were read at MembersAt name them.
	Members   []string
	MembersAt time.Time
	// EmptyAt is a moment at which no task was on the device, zero while there
	// may be one. What tasks left in the shared memory before is removed, and a
	// daemon that does not answer may be replaced.
	EmptyAt time.Time
}

// sameLimits reports whether two specs want the same of the daemon itself.
func (s Spec) sameLimits(other Spec) bool {
	return s.UUID == other.UUID && s.MemoryMiB == other.MemoryMiB && s.Percent == other.Percent && s.MaxClients == other.MaxClients &&
		s.Static == other.Static && s.Protocol == other.Protocol
}

// ServerState is what an MPS server says of itself.
type ServerState string

const (
	// ServerInitializing servers make their context and refuse clients.
	ServerInitializing ServerState = "INITIALIZING"
	// ServerActive servers take clients.
	ServerActive ServerState = "ACTIVE"
	// ServerFault servers lost a client to a fatal error: they refuse new clients
	// until all that were there have ended.
	ServerFault ServerState = "FAULT"
)

// Status is how a daemon is.
type Status struct {
	// PipeDir, LogDir and ShmDir are the directories that tasks see, on the host;
	// ControlDir is where the daemon itself is asked, GateDir where the gate's own files are, empty
	// for a gate of an earlier release.
	PipeDir, ControlDir, GateDir, LogDir, ShmDir string
	// Ready is true while the daemon lives, its server takes clients, and the
	// limits of both are confirmed.
	Ready bool
	// Reason says why it is not ready, in words that stay the same while that
	// lasts, and Since when that began. Action says what to do, where there is
	// more to do than to wait.
	Reason string
	Action string
	Since  time.Time
	// Settled is false until the first attempt to adopt or to start it is over.
	Settled bool
	// Generation grows with every start. StartedAt is when it began, LastEnd why
	// the one before ended.
	Generation int64
	StartedAt  time.Time
	LastEnd    string
	// PID is the daemon's, 0 while there is none.
	PID int
	// Server is the state of its server, empty while there is none. Culprit is the
	// process that brought a server into FAULT, 0 where its log does not tell.
	Server  ServerState
	Culprit int
	// Priorities is true when the daemon knows priorities of clients.
	Priorities bool
	// MultiUser is true when the server was seen to take clients of every user.
	MultiUser bool
	// Protocol is that of the daemon, and ProtocolReason why it is not the other one.
	Protocol       Protocol
	ProtocolReason string
	// Multiprocessors are the device's under MPS v3, where limits are percentages of them.
	Multiprocessors int
	// Partitioning is how the daemon divides the multiprocessors, which is not as wanted
	// until a former daemon is replaced.
	Partitioning Partitioning
}

// MostClients is how many clients any MPS server can have.
const MostClients = 60
