package kata

import (
	"fmt"
	"slices"

	katav1 "github.com/longshore/longshore/api/kata/v1"
)

// Requests says which calls the agent answers, by the names of their requests, such as
// ExecProcessRequest. The zero value answers all. Those of the service Health are always
// answered.
type Requests struct {
	// Allow, unless empty, names the only ones that are answered.
	Allow []string
	// Deny names those that are not answered, also when Allow has them.
	Deny []string
}

// Validate returns InvalidArgument for a name that no request has, so that a word
// written wrongly denies or allows nothing in silence.
func (r Requests) Validate() error {
	if len(r.Allow)+len(r.Deny) == 0 {
		return nil // the descriptors are made at their first use, and take their time
	}
	known := map[string]bool{}
	methods := katav1.File_kata_v1_agent_proto.Services().ByName("AgentService").Methods()
	for i := range methods.Len() {
		known[string(methods.Get(i).Input().Name())] = true
	}
	for _, name := range slices.Concat(r.Allow, r.Deny) {
		if !known[name] {
			return fmt.Errorf("kata: there is no request %q", name)
		}
	}
	return nil
}

// allowed reports whether a request is answered.
func (r Requests) allowed(request string) bool {
	return (len(r.Allow) == 0 || slices.Contains(r.Allow, request)) && !slices.Contains(r.Deny, request)
}

// requestOf is the name of the request of one of the agent's calls.
func requestOf(call string) string {
	switch call {
	case "ReadStdout", "ReadStderr":
		return readStreamRequest
	case "WriteStdin":
		return "WriteStreamRequest"
	case "GetGuestDetails":
		return "GuestDetailsRequest"
	case "GetVolumeStats":
		return "VolumeStatsRequest"
	case "MemAgentMemcgSet":
		return "MemAgentMemcgConfig"
	case "MemAgentCompactSet":
		return "MemAgentCompactConfig"
	}
	return call + "Request"
}
