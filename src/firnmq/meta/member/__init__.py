"""A member of etcd that this process runs and supervises."""

from firnmq.meta.member.command import find_program, member_command
from firnmq.meta.member.supervisor import EtcdMember

__all__ = ["EtcdMember", "find_program", "member_command"]
