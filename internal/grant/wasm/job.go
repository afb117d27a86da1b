package wasm

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/longshore/longshore/internal/grant"
)

// JobNumber is the descriptor of a worker's Job.
const JobNumber = grant.ArgdataNumber

const (
	maxJob    = 4 << 20
	maxNumber = 1024 // of a descriptor
)

// Job is a worker's job.
type Job = grant.WasmJob

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
	return j, validate(j)
}

func validate(j *Job) error {
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
