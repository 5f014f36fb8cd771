"""Tool calls that wait for a person: what is asked, who answers, and how the tool loop goes on afterwards."""
