package api

import (
	"errors"
	"fmt"

	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
)

// validateAttachInput checks the record that names the container of an input stream.
func validateAttachInput(in *mesosagent.Call_AttachContainerInput) error {
	switch {
	case in.Type == nil:
		return expecting("attach_container_input.type")
	case in.GetType() == mesosagent.Call_AttachContainerInput_UNKNOWN:
		return errors.New("'attach_container_input.type' is unknown")
	case in.GetType() != mesosagent.Call_AttachContainerInput_CONTAINER_ID:
		return nil // a later record, for validateInput
	case in.ContainerId == nil:
		return expecting("attach_container_input.container_id")
	}
	if err := CheckID(in.GetContainerId()); err != nil {
		return fmt.Errorf("'attach_container_input.container_id' is invalid: %w", err)
	}
	return nil
}

// ValidateFirstInput returns an error if the first record of an input stream does not
// name the container. validate has checked the record before.
func ValidateFirstInput(in *mesosagent.Call_AttachContainerInput) error {
	if in.GetType() != mesosagent.Call_AttachContainerInput_CONTAINER_ID {
		return errors.New("Expecting 'attach_container_input.type' to be CONTAINER_ID") //nolint:staticcheck // Mesos' text
	}
	return nil
}

// validateInput returns an error for an invalid later record of an input stream, in Mesos' words.
func validateInput(c *mesosagent.Call) error {
	in := c.GetAttachContainerInput()
	if c.GetType() != mesosagent.Call_ATTACH_CONTAINER_INPUT {
		return fmt.Errorf("Expecting 'type' to be 'ATTACH_CONTAINER_INPUT' instead of: '%s'", c.GetType()) //nolint:staticcheck // Mesos' text
	}
	if in.GetType() != mesosagent.Call_AttachContainerInput_PROCESS_IO {
		return fmt.Errorf("Expecting 'attach_container_input.type' to be 'PROCESS_IO' instead of: '%s'", in.GetType()) //nolint:staticcheck // Mesos' text
	}
	p := in.GetProcessIo()
	switch {
	case p == nil:
		return expecting("attach_container_input.process_io")
	case p.Type == nil:
		return expecting("process_io.type")
	case p.GetType() == mesosagent.ProcessIO_DATA:
		return validateData(p)
	case p.GetType() == mesosagent.ProcessIO_CONTROL:
		return validateControl(p)
	}
	return errors.New("'process_io.type' is unknown")
}

func validateData(p *mesosagent.ProcessIO) error {
	switch d := p.GetData(); {
	case d == nil:
		return expecting("process_io.data")
	case d.Type == nil:
		return expecting("process_io.data.type")
	case d.GetType() != mesosagent.ProcessIO_Data_STDIN:
		return errors.New("Expecting 'process_io.data.type' to be 'STDIN'") //nolint:staticcheck // Mesos' text
	case d.Data == nil:
		return expecting("process_io.data.data")
	}
	return nil
}

func validateControl(p *mesosagent.ProcessIO) error {
	switch c := p.GetControl(); {
	case c == nil:
		return expecting("process_io.control")
	case c.Type == nil:
		return expecting("process_io.control.type")
	case c.GetType() == mesosagent.ProcessIO_Control_HEARTBEAT:
		return nil
	case c.GetType() != mesosagent.ProcessIO_Control_TTY_INFO:
		return errors.New("'process_io.control.type' is unknown")
	case c.TtyInfo == nil:
		return expecting("process_io.control.tty_info")
	case c.GetTtyInfo().WindowSize == nil:
		return expecting("tty_info.window_size")
	}
	return nil
}
