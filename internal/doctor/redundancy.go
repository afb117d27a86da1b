package doctor

import (
	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/core"
)

// Redundancy is the finding whether containers survive the death of any two of agent, keeper and
// nest. err is the keeper's answer when it has no status.
func Redundancy(s core.SupervisorStatus, err error) control.Finding {
	const name, hint = "redundancy", "containers keep running; see keeper/keeper.log in the state directory"
	switch {
	case err != nil:
		return Fail(name, hint, "the nest has no keeper that answers: if the nest dies too, exits are lost: %v", err)
	case s.Exposed() != "":
		return Warn(name, hint+"; a keeper of an earlier release has no copies", "%s", s.Exposed())
	}
	return OK(name, "containers survive the death of any two of agent, keeper and nest")
}
