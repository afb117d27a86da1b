package doctor_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/doctor"
)

// TestFindingsOfRedundancy: each kind of loss has its finding, and the board returns only changes of the status.
func TestFindingsOfRedundancy(t *testing.T) {
	var board doctor.Board
	if f := doctor.Redundancy(core.SupervisorStatus{}, errors.New("x")); len(board.Put(f)) != 0 {
		t.Error("a finding is reported before the first check of all")
	}
	whole := core.SupervisorStatus{KeeperPid: 1, NestPid: 2, Processes: 3}
	if changed := board.Update([]control.Finding{doctor.Redundancy(whole, nil)}); len(changed) != 0 {
		t.Errorf("told at first: %+v", changed)
	}
	behind, alone := whole, whole
	behind.Uncopied, alone.NestPid = 2, 0
	for _, c := range []struct {
		of     core.SupervisorStatus
		err    error
		status control.FindingStatus
		text   string
		told   bool
	}{
		{whole, nil, control.FindingOK, "any two", false},
		{behind, nil, control.FindingWarn, "no copies of what keeper and nest hold of 2 processes", true},
		{alone, nil, control.FindingWarn, "has lost its nest", false},
		{whole, errors.New("nobody answers"), control.FindingFail, "no keeper that answers: if the nest dies too, exits are lost: nobody answers", true},
		{whole, nil, control.FindingOK, "any two", true},
	} {
		f := doctor.Redundancy(c.of, c.err)
		if f.Status != c.status || !strings.Contains(f.Detail, c.text) || (f.Hint == "") != (c.status == control.FindingOK) {
			t.Errorf("%+v, %v: %+v", c.of, c.err, f)
		}
		if told := len(board.Put(f)) == 1; told != c.told {
			t.Errorf("%+v, %v: reported %v", c.of, c.err, told)
		}
	}
}
