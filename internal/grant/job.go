package grant

// WasmJob is what a worker of longshore-wasm is to run. It reads the job from descriptor ArgdataNumber; all of the job's numbers are descriptors
// of the worker.
type WasmJob struct {
	// Module has the program.
	Module int `json:"module"`
	// Compiled has what was compiled of the module, 0 if the worker is to compile by itself.
	Compiled int `json:"compiled,omitempty"`

	Args        []string     `json:"args"`
	Environment []string     `json:"environment,omitempty"`
	Descriptors []Descriptor `json:"descriptors"`
	Argdata     []byte       `json:"argdata"`
}
