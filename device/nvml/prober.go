package nvml

// Prober tries whether a GPU works.
type Prober struct{}

// Probe has nothing to add to what a survey has seen: NVML answers for the GPU,
// asks for no recovery and counts no broken memory.
func (Prober) Probe(string) error { return nil }
