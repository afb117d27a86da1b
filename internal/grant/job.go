package grant

// WasmJob is the job of a worker of longshore-wasm. It reads the job from descriptor ArgdataNumber; all of the job's
// numbers are descriptors of the worker.
type WasmJob struct {
	// Module has the program.
	Module int `json:"module"`
	// Compiled has the module's compiled form, 0 if the worker is to compile it.
	Compiled int `json:"compiled,omitempty"`

	Args        []string     `json:"args"`
	Environment []string     `json:"environment,omitempty"`
	Descriptors []Descriptor `json:"descriptors"`
	Argdata     []byte       `json:"argdata"`
}
