package view

import (
	"slices"

	"google.golang.org/protobuf/types/known/durationpb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
)

// Start returns the parts of a container's last start with their durations, in the order of their
// beginnings.
func Start(sb *core.Sandbox, c *core.Container) (parts []*longshorev1.StartPart) {
	all := append(sb.Trace.Verbs(), c.Trace.Verbs()...)
	slices.SortStableFunc(all, func(a, b core.TracedVerb) int { return a.At.Compare(b.At) })
	for _, v := range all {
		part := &longshorev1.StartPart{Verb: v.Verb, At: Time(v.At), By: string(v.By), Bytes: uint64(max(v.Bytes, 0))}
		if part.GetBy() == "" {
			part.By = string(c.Owner)
		}
		for _, s := range v.Stages {
			part.Stages = append(part.Stages, &longshorev1.StartStage{Name: s.Name, Took: durationpb.New(s.Took)})
		}
		parts = append(parts, part)
	}
	return parts
}
