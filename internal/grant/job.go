package grant

// WasmJob is what a worker of longshore-wasm is to run. It reads the job from descriptor ArgdataNumber; all of the job's numbers are descriptors
// of the worker.
type WasmJob struct {
	// Module has the program.
	Module int `json:"module"`
	// Compiled has what was compiled of the module, 0 if the worker is to compile by itself. Scratch is then an empty
	// directory of the worker's own, of which nothing is left when the program begins.
	Compiled int    `json:"compiled,omitempty"`
	Scratch  string `json:"scratch,omitempty"`

	Args        []string     `json:"args"`
	Environment []string     `json:"environment,omitempty"`
	Descriptors []Descriptor `json:"descriptors"`
	Argdata     []byte       `json:"argdata"`
}
