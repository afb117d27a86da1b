package wasm

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/longshore/longshore/internal/grant"
)

// JobNumber is the descriptor from which a worker reads its Job.
const JobNumber = grant.ArgdataNumber

const (
	maxJob    = 4 << 20
	maxModule = 256 << 20
	maxNumber = 1024 // of a descriptor
)

// Job is what a worker is to run. All its numbers are descriptors of the worker.
type Job struct {
	// Module has the program.
	Module int `json:"module"`
	// Compiled has what Compile made of the module, 0 if the worker is to compile by itself. Scratch is then an empty
	// directory of the worker's own, of which nothing is left when the program begins.
	Compiled int    `json:"compiled,omitempty"`
	Scratch  string `json:"scratch,omitempty"`

	Args        []string           `json:"args"`
	Environment []string           `json:"environment,omitempty"`
	Descriptors []grant.Descriptor `json:"descriptors"`
	Argdata     []byte             `json:"argdata"`
}

// ReadJob reads a job.
func ReadJob(r io.Reader) (*Job, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxJob+1))
	if err != nil {
		return nil, fmt.Errorf("read the job: %w", err)
	}
	if len(data) > maxJob {
		return nil, fmt.Errorf("read the job: it has more than %d bytes", maxJob)
	}
	j := &Job{}
	if err := json.Unmarshal(data, j); err != nil {
		return nil, fmt.Errorf("read the job: %w", err)
	}
	return j, j.validate()
}

func (j *Job) validate() error {
	used := []int{0, 1, 2, JobNumber}
	take := func(what string, n int) error {
		if n < 0 || n >= maxNumber || slices.Contains(used, n) {
			return fmt.Errorf("read the job: %s has the descriptor %d", what, n)
		}
		used = append(used, n)
		return nil
	}
	if err := take("the module", j.Module); err != nil {
		return err
	}
	if j.Compiled != 0 {
		if err := take("the compiled module", j.Compiled); err != nil {
			return err
		}
	}
	for _, d := range j.Descriptors {
		if err := take(d.Name, d.Number); err != nil {
			return err
		}
	}
	return nil
}
