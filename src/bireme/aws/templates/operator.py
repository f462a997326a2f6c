"""The stack that an administrator makes once for an account: CloudFormation's role, and the operators' policy."""

from __future__ import annotations

from bireme.aws.layout import EXECUTION_ROLE, OPERATOR_STACK
from bireme.aws.policy import execution_policy, operator_policy
from bireme.aws.templates.parts import Template, att, outputs, ref, resource, template, trust


def operator() -> Template:
    """The template; `bireme cluster policy --template` prints it."""
    policy = {"PolicyName": "bireme-clusters", "PolicyDocument": execution_policy()}
    role = {
        "RoleName": EXECUTION_ROLE,
        "AssumeRolePolicyDocument": trust("cloudformation.amazonaws.com"),
        "Policies": [policy],
    }
    granted = {"ManagedPolicyName": OPERATOR_STACK, "PolicyDocument": operator_policy()}
    return template(
        "bireme: what an operator of clusters may do, and the role that CloudFormation works with.",
        {"ExecutionRole": resource("IAM::Role", role), "OperatorPolicy": resource("IAM::ManagedPolicy", granted)},
        Outputs=outputs(
            ExecutionRoleArn=(att("ExecutionRole", "Arn"), "CloudFormation works with it."),
            OperatorPolicyArn=(ref("OperatorPolicy"), "Attach it to the operators' role."),
        ),
    )
