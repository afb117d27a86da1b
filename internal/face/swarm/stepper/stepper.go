// Package stepper returns a worker's next action for a task, and the task's state afterwards: one
// step at a time, from ASSIGNED to RUNNING and to one of the end states.
//
// It is pure. It must not know the engine, nor the protocol beyond its states. Start
// at Next.
package stepper

import (
	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

// The states, by shorter names.
const (
	assigned  = swarmv1.TaskState_ASSIGNED
	accepted  = swarmv1.TaskState_ACCEPTED
	preparing = swarmv1.TaskState_PREPARING
	ready     = swarmv1.TaskState_READY
	starting  = swarmv1.TaskState_STARTING
	running   = swarmv1.TaskState_RUNNING
	complete  = swarmv1.TaskState_COMPLETE
	shutdown  = swarmv1.TaskState_SHUTDOWN
	failed    = swarmv1.TaskState_FAILED
	rejected  = swarmv1.TaskState_REJECTED
)

// Action is the next action for a task.
type Action int

// The actions. Stop never fails: it is done, or tried again. After Rest there is nothing to do until another state is
// desired.
const (
	Rest    Action = iota // the task is where it should be, or has ended
	Advance               // nothing but the state changes
	Prepare               // everything up to the start: the image, the container
	Start                 // run the program, and find it healthy
	Watch                 // has the program ended?
	Stop                  // end the program
)

func (a Action) String() string {
	return [...]string{"rest", "advance", "prepare", "start", "watch", "stop"}[a]
}

// Outcome is the result of an action.
type Outcome int

// The outcomes.
const (
	Done   Outcome = iota // the task advances; of Watch: the program has ended well
	Wait                  // an event, or a time, begins the next step; of Watch: the program runs
	Retry                 // a temporary failure: the same action again, after a pause
	Failed                // it cannot be done; of Watch: the program has ended badly
)

func (o Outcome) String() string { return [...]string{"done", "wait", "retry", "failed"}[o] }

// Ended reports whether a task in this state has come to its end: it changes no more.
func Ended(s swarmv1.TaskState) bool { return s >= complete }

// Next is the next action for a task that is to be in the state desired and is in
// actual.
func Next(desired, actual swarmv1.TaskState) Action {
	switch {
	case Ended(actual):
		return Rest
	case desired >= shutdown:
		return Stop
	case actual < running && max(actual, assigned) >= desired:
		return Rest // as far as it is to go for now
	}
	switch {
	case actual == preparing:
		return Prepare
	case actual == starting:
		return Start
	case actual >= running:
		return Watch
	}
	return Advance
}

// After is the state of a task in actual after an action. It is never lower.
func After(actual swarmv1.TaskState, a Action, o Outcome) swarmv1.TaskState {
	if o == Wait || o == Retry || a == Rest || Ended(actual) {
		return actual
	}
	if a == Stop {
		if o == Done {
			return shutdown
		}
		return actual // it is tried until it is done
	}
	if o == Failed {
		if actual < starting {
			return rejected
		}
		return failed
	}
	switch a {
	case Prepare:
		return ready
	case Start:
		return running
	case Watch:
		return complete
	case Rest, Advance, Stop:
	}
	switch {
	case actual < accepted:
		return accepted
	case actual < preparing:
		return preparing
	case actual == ready:
		return starting
	}
	return actual
}
